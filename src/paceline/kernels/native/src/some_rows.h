/* Functions that multiply some rows with a block, one per count, and their caller for all rows. */
#ifndef PL_SOME_ROWS_H
#define PL_SOME_ROWS_H

/* One function each for 1, 2, … rows: with all in one, compilers run out of registers. next: weights
   to fetch meanwhile, or NULL. */
typedef void some_rows(const struct pl_work *work, int64_t block, int64_t place,
                       const uint8_t *next);

#define UP_TO_2(x, of) x(of, 1) x(of, 2)
#define UP_TO_4(x, of) UP_TO_2(x, of) x(of, 3) x(of, 4)
#define UP_TO_6(x, of) UP_TO_4(x, of) x(of, 5) x(of, 6)
#define UP_TO_12(x, of) UP_TO_6(x, of) x(of, 7) x(of, 8) x(of, 9) x(of, 10) x(of, 11) x(of, 12)
#define UP_TO_WRITTEN(count) UP_TO_##count
#define UP_TO(count) UP_TO_WRITTEN(count)

/* All rows, at most `most` together. of: functions for 1 ... `most` rows. Rows are divided evenly, in
   parts that begin at multiples of `whole`: a single row after twelve would take as long as four. */
static void all_rows(some_rows *const *of, const int64_t most, const int64_t whole, const int panels,
                     const struct pl_work *work, int64_t first, int64_t end) {
    const int64_t rows = work->end_row - work->first_row, parts = (rows + most - 1) / most;
    if (rows < 1) return;
    const int64_t wholes = (rows + whole - 1) / whole;
    const int64_t least = wholes / parts, longer = wholes % parts;
    const struct ahead ahead = ahead_of(work, panels);
    for (int64_t block = first; block < end; block++) {
        const uint8_t *next = fetched_in(work, &ahead, block);
        for (int64_t part = 0, place = work->first_row, some; part < parts; part++, place += some) {
            const int64_t left = work->end_row - place;
            some = (least + (part < longer)) * whole;
            some = some < left ? some : left;
            of[some - 1](work, block, place, part ? NULL : next);
        }
    }
}

#define NAME_OF(format, rows) rows_##format##_##rows,
#define ROWS_WITH(block_of, format, rows) \
    static __attribute__((noinline)) void rows_##format##_##rows( \
        const struct pl_work *work, int64_t block, int64_t place, const uint8_t *next) { \
        block_of(format, rows, work, block, place, next); \
    }
#define RUN_WITH(format, most, whole, panels) \
    static void run_##format(const struct pl_work *work, int64_t first, int64_t end) { \
        static some_rows *const of[] = {UP_TO(most)(NAME_OF, format)}; \
        _Static_assert(sizeof of / sizeof *of == most, "a function for every count"); \
        _Static_assert(most % whole == 0, "blocks begin with whole fours"); \
        all_rows(of, most, whole, panels, work, first, end); \
    }

#endif
