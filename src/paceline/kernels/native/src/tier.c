/* Compiled once per tier, with that tier's flags and -DPL_TIER=<name>. */

#define JOINED(left, right) left##_##right
#define OF_TIER(left, tier) JOINED(left, tier)

int OF_TIER(pl_ready, PL_TIER)(void);
int OF_TIER(pl_ready, PL_TIER)(void) { return 1; }
