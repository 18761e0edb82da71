typedef int pl_threads_is_empty;
