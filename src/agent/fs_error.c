#include "agent/fs_error.h"

#include <errno.h>

const char *fs_error_code(int no)
{
	switch (no) {
	case ENOENT:
		return "S211";
	case ENOTDIR:
	case EISDIR:
		return "S212";
	case EEXIST:
		return "S213";
	case ENOTEMPTY:
		return "S214";
	case EACCES:
	case EPERM:
	case EROFS:
		return "S215";
	case ENAMETOOLONG:
		return "S210";
	default:
		return "S216";
	}
}

int fs_error(struct err *e, int no, const char *what, const char *path)
{
	return err_set(e, fs_error_code(no), no, "%s %s: %s", what, path, err_str(no));
}
