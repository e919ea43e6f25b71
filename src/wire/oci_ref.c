/* References and digests of oci.h.
 *
 * A reference is  [registry/]repository[:tag][@digest]. The first component is a registry when it
 * has a dot or a colon or is "localhost"; otherwise the registry is docker.io, where a repository
 * of one component lies under library/. This is what Docker and skopeo do with the same text.
 */
#include "wire/oci.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"

#define DEFAULT_REGISTRY   "docker.io"
#define DEFAULT_REPOSITORY "library/"
#define DEFAULT_TAG	   "latest"
#define TAG_BYTES_MAX	   128
#define NAME_BYTES_MAX	   255 /* registry/repository, distribution's own limit */
#define PORT_DIGITS_MAX	   5

static bool is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_alnum(char c)
{
	return is_lower(c) || is_digit(c) || (c >= 'A' && c <= 'Z');
}

static bool is_hex(const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!is_digit(s[i]) && !(s[i] >= 'a' && s[i] <= 'f'))
			return false;
	return true;
}

bool oci_digest_valid(const char *digest)
{
	return digest && strlen(digest) == OCI_DIGEST_LEN && str_starts(digest, "sha256:") &&
	       is_hex(digest + 7, 64);
}

const char *oci_digest_hex(const char *digest)
{
	return digest + 7;
}

const char *oci_host_arch(void)
{
#if defined(__x86_64__)
	return "amd64";
#elif defined(__aarch64__)
	return "arm64";
#else
#error "no OCI name is known for this architecture"
#endif
}

/* host := label ("." label)* [":" port]; label := alnum, with hyphens inside */
static bool host_valid(const char *s, size_t len)
{
	const char *colon = memchr(s, ':', len);
	size_t host_len = colon ? (size_t)(colon - s) : len;

	if (colon) {
		size_t digits = len - host_len - 1;

		if (!digits || digits > PORT_DIGITS_MAX)
			return false;
		for (size_t i = 0; i < digits; i++)
			if (!is_digit(colon[1 + i]))
				return false;
	}
	if (!host_len)
		return false;
	for (size_t i = 0; i < host_len; i++) {
		bool edge = i == 0 || s[i - 1] == '.' || i + 1 == host_len || s[i + 1] == '.';

		if (!is_alnum(s[i]) && (edge || (s[i] != '-' && s[i] != '.')))
			return false;
	}
	return true;
}

/* component := run (separator run)*; run := [a-z0-9]+; separator := "." | "_" | "__" | "-"+ */
static bool component_valid(const char *s, size_t len)
{
	size_t i = 0;

	for (;;) {
		size_t start = i, n;

		while (i < len && (is_lower(s[i]) || is_digit(s[i])))
			i++;
		if (i == start)
			return false;
		if (i == len)
			return true;
		n = strspn(s + i, "-");
		if (n > 0)
			i += n;
		else if (s[i] == '_')
			i += i + 1 < len && s[i + 1] == '_' ? 2 : 1;
		else if (s[i] == '.')
			i++;
		else
			return false;
	}
}

static bool repository_valid(const char *s)
{
	for (;;) {
		size_t len = strcspn(s, "/");

		if (!component_valid(s, len))
			return false;
		if (!s[len])
			return true;
		s += len + 1;
	}
}

static bool tag_valid(const char *s)
{
	size_t len = strlen(s);

	if (!len || len > TAG_BYTES_MAX || (!is_alnum(s[0]) && s[0] != '_'))
		return false;
	for (size_t i = 1; i < len; i++)
		if (!is_alnum(s[i]) && s[i] != '_' && s[i] != '.' && s[i] != '-')
			return false;
	return true;
}

/* Is the first component of `name` a registry? */
static bool names_registry(const char *name, const char *slash)
{
	size_t len = (size_t)(slash - name);

	return memchr(name, '.', len) || memchr(name, ':', len) ||
	       (len == strlen("localhost") && strncmp(name, "localhost", len) == 0);
}

/* Splits "[registry/]repository" (validated here) into the two. */
static int split_name(const char *name, struct oci_ref *ref)
{
	const char *slash = strchr(name, '/');

	if (slash && names_registry(name, slash)) {
		if (!host_valid(name, (size_t)(slash - name)) || !repository_valid(slash + 1))
			return -EINVAL;
		ref->registry = xstrndup(name, (size_t)(slash - name));
		name = slash + 1;
	} else {
		if (!repository_valid(name))
			return -EINVAL;
		ref->registry = xstrdup(DEFAULT_REGISTRY);
	}
	if (str_eq(ref->registry, "index.docker.io")) {
		free(ref->registry);
		ref->registry = xstrdup(DEFAULT_REGISTRY);
	}
	if (str_eq(ref->registry, DEFAULT_REGISTRY) && !strchr(name, '/'))
		ref->repository = xasprintf(DEFAULT_REPOSITORY "%s", name);
	else
		ref->repository = xstrdup(name);
	if (strlen(ref->registry) + 1 + strlen(ref->repository) > NAME_BYTES_MAX)
		return -EINVAL;
	return 0;
}

static int parse(char *text, struct oci_ref *ref, const char **why)
{
	char *at = strchr(text, '@'), *colon, *slash;

	if (at) {
		*at = '\0';
		if (!oci_digest_valid(at + 1)) {
			*why = "the digest must be sha256: and 64 lower-case hex digits";
			return -EINVAL;
		}
		ref->digest = xstrdup(at + 1);
	}
	colon = strrchr(text, ':');
	slash = strrchr(text, '/');
	if (colon && (!slash || colon > slash)) {
		*colon = '\0';
		if (!tag_valid(colon + 1)) {
			*why = "the tag must be 1 to 128 letters, digits, '_', '.' or '-'";
			return -EINVAL;
		}
		ref->tag = xstrdup(colon + 1);
	}
	if (strlen(text) == 64 && is_hex(text, 64)) {
		*why = "64 hex digits alone are an image id, not a name";
		return -EINVAL;
	}
	*why = "the form is [registry/]repository[:tag][@sha256:digest] with a lower-case "
	       "repository";
	if (split_name(text, ref) < 0)
		return -EINVAL;
	if (!ref->tag && !ref->digest)
		ref->tag = xstrdup(DEFAULT_TAG);
	return 0;
}

int oci_ref_parse(const char *text, struct oci_ref *ret, struct err *e)
{
	cleanup_free char *copy = NULL;
	struct oci_ref ref = {0};
	const char *why = NULL;

	if (strlen(text) > OCI_REF_BYTES_MAX)
		return err_set(e, "", EINVAL, "the image reference is longer than %d bytes",
			OCI_REF_BYTES_MAX);
	copy = xstrdup(text);
	if (parse(copy, &ref, &why) < 0) {
		oci_ref_done(&ref);
		return err_set(e, "", EINVAL, "'%s' is not an image reference: %s", text, why);
	}
	*ret = ref;
	return 0;
}

void oci_ref_done(struct oci_ref *ref)
{
	free(ref->registry);
	free(ref->repository);
	free(ref->tag);
	free(ref->digest);
	*ref = (struct oci_ref){0};
}

char *oci_ref_at(const struct oci_ref *ref, const char *digest)
{
	return xasprintf("%s/%s@%s", ref->registry, ref->repository, digest);
}

char *oci_ref_name(const struct oci_ref *ref)
{
	assert(ref->tag || ref->digest);
	if (!ref->tag)
		return oci_ref_at(ref, ref->digest);
	return xasprintf("%s/%s:%s", ref->registry, ref->repository, ref->tag);
}

char *oci_ref_wanted(const struct oci_ref *ref)
{
	if (ref->digest)
		return oci_ref_at(ref, ref->digest);
	return oci_ref_name(ref);
}
