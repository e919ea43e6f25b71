/* fs_error - errno to S-code, in one place (sandbox contract §3.4). */
#pragma once

#include "base/err.h"

/* "S211" for ENOENT and so on; S216 for what the table does not name. */
const char *fs_error_code(int no);

/* Records "WHAT PATH: reason" with the code of `no` (positive errno) and returns -no. */
int fs_error(struct err *e, int no, const char *what, const char *path);
