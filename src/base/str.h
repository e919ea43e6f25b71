/* str - small questions to strings, and numbers read strictly. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool str_eq(const char *a, const char *b); /* NULL equals NULL only */
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);

/* Decimal digits only, no sign, no blanks, no empty string, in range: else -EINVAL or -ERANGE and
 * *ret untouched. */
int str_u64(const char *s, uint64_t *ret);
int str_u32(const char *s, uint32_t *ret);

/* Octal digits only, value <= max: else -EINVAL. */
int str_octal(const char *s, uint32_t max, uint32_t *ret);

/* "512", "512K", "2M", "10G" (powers of two, letter in either case) as bytes; else -EINVAL/-ERANGE.
 */
int str_size(const char *s, uint64_t *ret_bytes);

/* 0 to 15 for a hex digit of either case, else -1. */
int str_hex_digit(char c);

/* 2*len lower-case hex digits and a NUL into dst. */
void str_hex(char *dst, const void *data, size_t len);

/* "0 B", "999 B", "1.0 KiB", "550 MiB": for people. */
const char *str_human_size(uint64_t bytes, char dst[static 16]);

/* A fresh random id: a version-4 UUID in lower case (RFC 9562 §5.4), 36 characters and a NUL.
 * Ends the process when the kernel has no randomness. */
void str_uuid4(char dst[static 37]);

/* NULL-terminated arrays of strings, as execve takes them. */
size_t strv_len(char *const *v);
void strv_free(char **v); /* NULL allowed */
char **strv_dup(char *const *v);
/* Appends a copy of s to *v (which may be NULL). */
void strv_add(char ***v, const char *s);
/* Appends copies of a and, unless it is NULL, of b. */
void strv_add_pair(char ***v, const char *a, const char *b);
/* The value of NAME in a list of NAME=value (the last one wins), or NULL. Points into v. */
const char *strv_env_get(char *const *v, const char *name);
