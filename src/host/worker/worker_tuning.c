#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/worker_priv.h"

/* Once for each variable: they are read at every start. */
static void warn(const char *name, const char *what)
{
	static const char *said[4];
	size_t i = 0;

	while (i < ARRAY_LEN(said) && said[i] && !str_eq(said[i], name))
		i++;
	if (i == ARRAY_LEN(said) || said[i])
		return;
	said[i] = name;
	log_warn("a variable is not used", "variable=%s why=%s", name, log_quote(what));
}

/* Anything but a word for yes or no is a typo, and typos never fail a boot. */
static bool read_switch(const char *name)
{
	static const char *const on[] = {"1", "true", "on", "yes"};
	static const char *const off[] = {"", "0", "false", "off", "no"};
	const char *value = getenv(name);

	for (size_t i = 0; value && i < ARRAY_LEN(on); i++)
		if (strcasecmp(value, on[i]) == 0)
			return true;
	for (size_t i = 0; value && i < ARRAY_LEN(off); i++)
		if (strcasecmp(value, off[i]) == 0)
			return false;
	if (value)
		warn(name, "it is not one of 1, true, on, yes, 0, false, off, no: taken as off");
	return false;
}

static uint64_t read_nofile(void)
{
	const char *value = getenv("III_VM_NOFILE_LIMIT");
	uint64_t n;

	if (!value || !*value)
		return WORKER_NOFILE_DEFAULT;
	if (str_u64(value, &n) == 0)
		return n;
	warn("III_VM_NOFILE_LIMIT", "it is not a number: the limit is 65536");
	return WORKER_NOFILE_DEFAULT;
}

static void check_shm(void)
{
	const char *value = getenv("III_VM_VIRTIOFS_SHM_SIZE_MIB");
	uint32_t mib;

	if (!value || !*value)
		return;
	if (str_u32(value, &mib) < 0)
		warn("III_VM_VIRTIOFS_SHM_SIZE_MIB", "it is not a number of MiB");
	else if (mib)
		warn("III_VM_VIRTIOFS_SHM_SIZE_MIB",
			"these VMs have no virtio-fs device to size: sources are disks");
}

void worker_tuning_read(struct worker_tuning *ret)
{
	*ret = (struct worker_tuning){
		.nofile = read_nofile(),
		.nested_virt = read_switch("III_VM_NESTED_VIRT"),
		.hyperthreads = read_switch("III_VM_HYPERTHREADING"),
	};
	check_shm();
}
