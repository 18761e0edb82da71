/* Guesses of heads. */
#include "guesses.h"

#include <string.h>

#include "api.h"
#include "half.h"

int pl_run_part(const struct pl_part *part, int64_t rows, struct pl_pass *pass, int threads) {
    pass->rows = pass->kept = pass->given_count = rows;
    pass->arena = part->arena, pass->given = part->given, pass->logits = part->out;
    return pl_run(part->steps, part->count, pass, threads);
}

void pl_put_word(const void *words, int64_t format, int64_t hidden, int64_t token, float *to) {
    const uint8_t *halfs = (const uint8_t *)words + 2 * token * hidden;
    if (format == PL_ROWS_F32)
        memcpy(to, (const float *)words + token * hidden, (size_t)hidden * sizeof *to);
    else if (format == PL_ROWS_F16)
        for (int64_t i = 0; i < hidden; i++) to[i] = pl_half(halfs + 2 * i);
    else if (format == PL_ROWS_BF16)
        for (int64_t i = 0; i < hidden; i++) to[i] = pl_brain(halfs + 2 * i);
    else pl_row_values((enum pl_format)format, words, hidden, token, to);
}

void pl_add_noise(const struct pl_guesses *of, float *logits, int64_t rows, int64_t depth, int64_t step) {
    if (!of->noise) return;
    for (int64_t row = 0; row < rows; row++, depth += step, logits += of->outputs) {
        if (depth >= of->heard) return;
        const float *noise = of->noise + depth * of->outputs;
        for (int64_t i = 0; i < of->outputs; i++) logits[i] += noise[i];
    }
}

int pl_guess(const struct pl_guesses *of, const float *logits, int64_t rows, int64_t *tokens,
             float *shares, double *chances) {
    const int failed = pl_likeliest(logits, rows, of->outputs, of->ranks, tokens, shares);
    if (failed) return failed;
    for (int64_t row = 0; row < rows; row++, tokens += of->ranks, shares += of->ranks) {
        double total = 0;
        for (int64_t i = 0; i < of->ranks; i++) {
            if (of->ids) tokens[i] = of->ids[tokens[i]];
            total += (double)shares[i];
        }
        /* Rounding may lift a row's sum slightly above 1. */
        for (int64_t i = 0; i < of->ranks; i++)
            *chances++ = total > 1 ? (double)shares[i] / total : (double)shares[i];
    }
    return PL_OK;
}
