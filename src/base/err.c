#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Cuts an overlong text at a character boundary and marks the cut; makes it valid UTF-8. */
static void finish_text(char *text, size_t size, int wanted)
{
	static const char mark[] = "\xe2\x80\xa6";

	if (wanted >= (int)size) {
		size_t keep = utf8_cut(text, size - sizeof(mark));

		memcpy(text + keep, mark, sizeof(mark));
	}
	utf8_scrub(text);
}

int err_set(struct err *e, const char *code, int no, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (no < 0)
		no = -no;
	if (e) {
		snprintf(e->code, sizeof(e->code), "%s", code ? code : "");
		e->no = no;
		va_start(ap, fmt);
		n = vsnprintf(e->text, sizeof(e->text), fmt, ap);
		va_end(ap);
		finish_text(e->text, sizeof(e->text), n);
	}
	return no ? -no : -EIO;
}

void err_wrap(struct err *e, const char *fmt, ...)
{
	char old[ERR_TEXT_MAX];
	va_list ap;
	int n, m;

	if (!e)
		return;
	memcpy(old, e->text, sizeof(old));
	va_start(ap, fmt);
	n = vsnprintf(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
	if (n < 0)
		n = 0;
	if (n >= (int)sizeof(e->text)) {
		finish_text(e->text, sizeof(e->text), n);
		return;
	}
	m = snprintf(e->text + n, sizeof(e->text) - n, ": %s", old);
	finish_text(e->text, sizeof(e->text), n + m);
}

void err_code(struct err *e, const char *code)
{
	if (e && !e->code[0])
		snprintf(e->code, sizeof(e->code), "%s", code);
}

const char *err_str(int no)
{
	static _Thread_local char unknown[24];
	const char *s = strerrordesc_np(no < 0 ? -no : no);

	if (s)
		return s;
	snprintf(unknown, sizeof(unknown), "error %d", no);
	return unknown;
}
