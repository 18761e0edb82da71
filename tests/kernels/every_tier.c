/* Runs every tier of this machine against the portable one: products of all formats, attention and
   steps of a pass. Says what differs and returns 1, else names the tiers and returns 0.

   For machines that only an emulator knows: it needs no Python. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "program.h"

static uint64_t state = 88172645463325252u;

static uint32_t any(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static float number(void) { return ((float)(any() % 20001) - 10000.0f) / 3000.0f; }

static void *get(size_t bytes) {
    void *memory = calloc(1, bytes + 64);
    if (!memory) exit(3);
    return memory;
}

static float *numbers(int64_t count) {
    float *made = get(sizeof *made * (size_t)count);
    for (int64_t i = 0; i < count; i++) made[i] = number();
    return made;
}

enum { MOST_OUT = 1 << 15 };
static float outs[2][MOST_OUT];
static int failed;

static void compare(const char *tier, const char *what, int which, int64_t count) {
    if (!memcmp(outs[0], outs[1], sizeof(float) * (size_t)count)) return;
    printf("%s: %s %d differs\n", tier, what, which);
    failed = 1;
}

/* Numbers of a block and its bytes, by format. */
static const int per_block[] = {32, 32, 32, 32, 32, 256, 256, 256, 1, 1, 1, 1, 1};
static const int block_bytes[] = {18, 20, 22, 24, 34, 144, 176, 210, 4, 2, 2, 2, 2};

/* Bytes below 60 make halfs, and floats, that are small numbers. */
static uint8_t *blocks_of(int format, int64_t count) {
    const int64_t bytes = count * block_bytes[format];
    uint8_t *made = get((size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) made[i] = (uint8_t)(any() % 60);
    return made;
}

static void products(const char *tier) {
    static const int64_t many[] = {1, 2, 3, 4, 7, 13, 35};
    for (int format = 0; format < PL_FORMATS; format++)
        for (int64_t outputs = 1; outputs < 70; outputs += 17) {
            const int64_t inputs = 2 * per_block[format] * (format < PL_F32 ? 1 : 19);
            uint8_t *blocks = blocks_of(format, outputs * inputs / per_block[format]);
            uint8_t *panels = get((size_t)pl_packed_bytes(format, outputs, inputs));
            float *rows = numbers(35 * inputs), *bias = numbers(outputs);
            if (pl_pack(format, blocks, NULL, outputs, inputs, panels, 1)) exit(3);
            for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
                for (int side = 0; side < 2; side++) {
                    pl_use_tier(side ? tier : "portable");
                    if (pl_product(format, panels, outputs, inputs, rows, many[i], bias, outs[side],
                                   outputs, 1))
                        exit(3);
                }
                compare(tier, "a product of format", format, many[i] * outputs);
            }
            free(blocks), free(panels), free(rows), free(bias);
        }
}

static void attention(const char *tier) {
    enum { ROWS = 7, HEADS = 6, KEY_HEADS = 2, SIZE = 20, SLOTS = 90 };
    static int32_t first[ROWS], count[ROWS], begin[ROWS + 1], extra[2 * ROWS];
    float *query = numbers(ROWS * HEADS * SIZE), *keys = numbers(KEY_HEADS * SLOTS * SIZE);
    float *values = numbers(KEY_HEADS * SLOTS * SIZE);
    for (int row = 0; row < ROWS; row++) {
        first[row] = row / 4 * 3, count[row] = 60 - row, begin[row] = 2 * row;
        extra[2 * row] = 70 + row, extra[2 * row + 1] = 78 + row;
    }
    begin[ROWS] = 2 * ROWS;
    for (int capped = 0; capped < 2; capped++) {
        for (int side = 0; side < 2; side++) {
            const struct pl_attention of = {
                .rows = ROWS, .heads = HEADS, .key_heads = KEY_HEADS, .size = SIZE,
                .value_size = SIZE, .query = query, .query_head = SIZE,
                .query_row = HEADS * SIZE, .keys = keys, .key_head = 4 * SLOTS * SIZE,
                .key_slot = 4 * SIZE, .values = values, .value_head = 4 * SLOTS * SIZE,
                .value_slot = 4 * SIZE, .first = first, .count = count, .extra_begin = begin,
                .extra = extra, .out = outs[side], .scale = 0.2f, .kind = PL_FLOAT32,
                .cap = capped ? 5.0f : 0.0f,
            };
            pl_use_tier(side ? tier : "portable");
            if (pl_attend(&of, 1)) exit(3);
        }
        compare(tier, "attention, capped", capped, ROWS * HEADS * SIZE);
    }
    free(query), free(keys), free(values);
}

/* One step that makes logits [rows, 37] of two values of a table. */
static void steps(const char *tier) {
    enum { ROWS = 3, COUNT = 37 };
    static const int64_t tokens[ROWS] = {2, 0, 1}, positions[ROWS] = {0}, keep[ROWS] = {0, 1, 2};
    float *table = numbers(ROWS * COUNT), *other = numbers(COUNT), *arena = numbers(4096);
    for (int i = 0; i < COUNT; i++) other[i] = other[i] * other[i] + 0.5f;
    const struct pl_operand value = {.table = PL_OF_ROWS, .stride = COUNT, .period = COUNT, .each = 1};
    const struct pl_operand fixed = {.data = other, .period = COUNT, .each = 1};
    for (int op = PL_MAP; op <= PL_LAYER_NORM; op++)
        for (int function = 0; function < (op <= PL_MEAN ? PL_FUNCTIONS : 1); function++)
            for (int join = 0; join < (op == PL_MAP ? PL_JOINS : 1); join++) {
                const struct pl_step program[] = {
                    {.op = PL_EMBED, .count = COUNT, .size = COUNT, .out_stride = COUNT, .format = -1,
                     .panels = table, .outputs = ROWS, .inputs = COUNT},
                    {.op = op, .function = function, .join = join, .count = op == PL_MEAN ? 1 : COUNT,
                     .size = COUNT, .in = value, .other = fixed, .third = fixed, .number = 1e-5f,
                     .out_buffer = -1, .out_stride = COUNT},
                };
                for (int side = 0; side < 2; side++) {
                    const struct pl_pass pass = {
                        .rows = ROWS, .kept = ROWS, .tokens = tokens, .positions = positions,
                        .keep = keep, .arena = arena, .arena_of_kept = arena + 2048,
                        .logits = outs[side],
                    };
                    memset(outs[side], 0, sizeof(float) * ROWS * COUNT);
                    pl_use_tier(side ? tier : "portable");
                    if (pl_run(program, 2, &pass, 1)) exit(3);
                }
                compare(tier, "step", op * 1000 + function * 10 + join, ROWS * COUNT);
            }
    free(table), free(other), free(arena);
}

int main(void) {
    char names[128];
    strcpy(names, pl_tiers());
    puts(names);
    for (char *tier = strtok(names, ","); tier; tier = strtok(NULL, ","))
        if (tier == names || strcmp(tier, "portable")) /* which is run beside every other one */
            products(tier), attention(tier), steps(tier);
    return failed;
}
