"""paceline's own C library: `build` compiles it, `library` finds and opens it."""
