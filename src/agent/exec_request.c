#include "agent/exec_request.h"

#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/str.h"

int exec_request_parse(json_object *head, struct exec_request *ret, struct err *e)
{
	struct exec_request r = {.caps = {UINT64_MAX, UINT64_MAX}};
	const char *workdir = "/";

	if (json_get_strv(head, "argv", JSON_REQUIRED, &r.argv, e) < 0 ||
		json_get_strv(head, "env", JSON_OPTIONAL, &r.env, e) < 0 ||
		json_get_str(head, "workdir", JSON_NULLABLE, &workdir, e) < 0 ||
		json_get_u64(head, "deadline_ms", JSON_REQUIRED, &r.deadline_ms, e) < 0 ||
		json_get_u64(head, "stdout_cap", JSON_OPTIONAL, &r.caps[0], e) < 0 ||
		json_get_u64(head, "stderr_cap", JSON_OPTIONAL, &r.caps[1], e) < 0)
		goto bad;
	if (!r.argv[0]) {
		err_set(e, "S001", EINVAL, "argv is empty: there is no program to run");
		goto bad;
	}
	r.workdir = xstrdup(*workdir ? workdir : "/");
	r.deadline_ms = MAX(r.deadline_ms, (uint64_t)1);
	*ret = r;
	return 0;
bad:
	exec_request_done(&r);
	err_wrap(e, "exec");
	err_code(e, "S001");
	return -EINVAL;
}

void exec_request_done(struct exec_request *r)
{
	strv_free(r->argv);
	strv_free(r->env);
	free(r->workdir);
	*r = (struct exec_request){0};
}
