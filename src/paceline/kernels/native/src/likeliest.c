/* The likeliest of scored tokens. */
#include "api.h"
#include "tier.h"

PL_API int pl_likeliest(const float *rows, int64_t count, int64_t numbers, int64_t most,
                        int64_t *places, float *shares) {
    if (count < 0 || numbers < 1 || most < 1) return PL_BAD_ARGUMENT;
    const struct pl_tier *tier = pl_current_tier();
    for (int64_t row = 0; row < count; row++)
        tier->rest->likeliest(rows + row * numbers, numbers, most, places + row * most,
                        shares + row * most);
    return PL_OK;
}
