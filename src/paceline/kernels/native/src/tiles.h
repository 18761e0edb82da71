/* Rows of bfloat16 times tiles of bfloat16, as AMX multiplies them.

   For each output and row, in each group of 32 inputs, the upper numbers of the pairs are multiplied
   and added in order, and so are the lower ones,
       upper = fma(weight, number, upper)
   and the sum of both is added to that of the groups before. Without tiles, vectors do the same row by
   row: for checks, not for speed. Numbers below 2 to the -126 may count as 0. */
enum { PAIRS_OF_GROUP = PL_GROUP / 2, TILE_BYTES = 1024, PANELS_OF_BLOCK = FLOAT_OUTPUTS / PL_PANEL };

#ifdef PL_TILES

/* Rows of a tile; rows multiplied together. */
enum { ROWS_OF_TILE = 16, ROWS_OF_TILES = 2 * ROWS_OF_TILE };
_Static_assert(PANELS_OF_BLOCK == 2, "a block is as wide as two tiles");

/* What LDTILECFG reads. */
struct shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_of_row[16];
    uint8_t rows[16];
};

/* Tiles 0, 1: sums of two panels for the first rows; 2, 3: for the rows after; 4, 5: numbers of these
   rows; 6, 7: weights. */
static void shape_tiles(int64_t rows) {
    const int64_t first = rows < ROWS_OF_TILE ? rows : ROWS_OF_TILE, second = rows - first;
    const int64_t of[8] = {first, first, second, second, first, second, 16, 16};
    struct shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shapes.rows[tile] = (uint8_t)of[tile];
        shapes.bytes_of_row[tile] = of[tile] ? 64 : 0;
    }
    /* Older GCCs take the next instruction to read 8 bytes, and may leave the others unwritten. */
    __asm__ volatile("" : : "m"(shapes));
    _tile_loadconfig(&shapes);
}

/* Sums of a block for the rows of one tile or two, whose pairs begin at `rows`. */
INLINE void tile_sums(const int two, const struct pl_work *work, int64_t block, const float *rows,
                      const uint8_t *next, float (*sums)[FLOAT_OUTPUTS]) {
    const uint8_t *one = panel_at(work->matrix, PL_BF16_TILES, 2 * block);
    const uint8_t *other = panel_at(work->matrix, PL_BF16_TILES, 2 * block + 1);
    const int64_t groups = work->rows->groups, stride = groups * PL_GROUP * 2;
    const int64_t after = ROWS_OF_TILE * groups * PAIRS_OF_GROUP;
    _tile_zero(0);
    _tile_zero(1);
    if (two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t group = 0; group < groups; group++) {
        fetch(&next, PANELS_OF_BLOCK * TILE_BYTES);
        const float *numbers = rows + group * PAIRS_OF_GROUP;
        _tile_loadd(4, numbers, stride);
        _tile_loadd(6, one + group * TILE_BYTES, 64);
        _tile_loadd(7, other + group * TILE_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, numbers + after, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], sizeof *sums);
    _tile_stored(1, sums[0] + PL_PANEL, sizeof *sums);
    if (two) {
        _tile_stored(2, sums[ROWS_OF_TILE], sizeof *sums);
        _tile_stored(3, sums[ROWS_OF_TILE] + PL_PANEL, sizeof *sums);
    }
}

static __attribute__((noinline)) void tile_block(const struct pl_work *work, int64_t block,
                                                 int64_t place, int64_t rows,
                                                 const uint8_t *next) {
    const float *from = work->rows->pairs + place * work->rows->groups * PAIRS_OF_GROUP;
    float sums[ROWS_OF_TILES][FLOAT_OUTPUTS];
    if (rows > ROWS_OF_TILE) tile_sums(1, work, block, from, next, sums);
    else tile_sums(0, work, block, from, next, sums);
    for (int64_t row = 0; row < rows; row++) {
        const floats_t found[] = {load_floats(sums[row]), load_floats(sums[row] + LANES)};
        write_block(work, FLOAT_COLUMNS, block, place + row, found);
    }
}

static void run_PL_BF16_TILES(const struct pl_work *work, int64_t first, int64_t end) {
    const int64_t rows = work->end_row - work->first_row;
    const int64_t parts = (rows + ROWS_OF_TILES - 1) / ROWS_OF_TILES;
    const struct ahead ahead = ahead_of(work, PANELS_OF_BLOCK);
    int64_t shaped = 0;
    for (int64_t block = first; block < end; block++)
        for (int64_t part = 0; part < parts; part++) {
            const int64_t done = part * ROWS_OF_TILES, left = rows - done;
            const int64_t some = left < ROWS_OF_TILES ? left : ROWS_OF_TILES;
            if (some != shaped) shape_tiles(shaped = some);
            tile_block(work, block, work->first_row + done, some,
                       part ? NULL : fetched_in(work, &ahead, block));
        }
    if (shaped) _tile_release();
}

#else

INLINE floats_t group_of_pairs(const uint8_t *tile, const float *numbers) {
    floats_t upper = no_floats(), lower = no_floats();
    for (int pair = 0; pair < PAIRS_OF_GROUP; pair++) {
        const floats_t weights = load_floats((const float *)(tile + pair * 64));
        const floats_t number = same_floats(numbers[pair]);
        upper = times_plus(upper_brains(weights), upper_brains(number), upper);
        lower = times_plus(lower_brains(weights), lower_brains(number), lower);
    }
    return plus(lower, upper);
}

static void run_PL_BF16_TILES(const struct pl_work *work, int64_t first, int64_t end) {
    const int64_t groups = work->rows->groups;
    for (int64_t block = first; block < end; block++)
        for (int64_t row = work->first_row; row < work->end_row; row++) {
            const float *numbers = work->rows->pairs + row * groups * PAIRS_OF_GROUP;
            floats_t found[FLOAT_COLUMNS];
            for (int c = 0; c < FLOAT_COLUMNS; c++) {
                const int64_t panel = block * PANELS_OF_BLOCK + c / VECTORS;
                const uint8_t *tile =
                    panel_at(work->matrix, PL_BF16_TILES, panel) + 4 * LANES * (c % VECTORS);
                found[c] = no_floats();
                for (int64_t group = 0; group < groups; group++)
                    found[c] = plus(found[c], group_of_pairs(tile + group * TILE_BYTES,
                                                             numbers + group * PAIRS_OF_GROUP));
            }
            write_block(work, FLOAT_COLUMNS, block, row, found);
        }
}

#endif
