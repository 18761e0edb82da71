typedef int pl_pack_is_empty;
