#include "agent/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"

#define BASE  "/mnt/base"
#define UPPER "/mnt/upper"

/* Disks are probed before init starts on both VMMs; this is for a slow one. */
#define FIND_TRIES    1000
#define FIND_RETRY_MS 5

static bool find_once(const char *serial, char dst[static 32])
{
	DIR *dir = opendir("/sys/block");
	struct dirent *d;
	bool found = false;

	while (dir && !found && (d = readdir(dir))) {
		cleanup_free char *file = xasprintf("%s/serial", d->d_name), *text = NULL;

		/* loop0 and the like have no serial. */
		if (d->d_name[0] == '.' || fd_slurp_at(dirfd(dir), file, 256, &text, NULL) < 0)
			continue;
		text[strcspn(text, "\n")] = '\0';
		found = str_eq(text, serial) && strlen(d->d_name) < 24;
		if (found)
			snprintf(dst, 32, "/dev/%s", d->d_name);
	}
	if (dir)
		closedir(dir);
	return found;
}

int disk_find(const char *serial, const char *what, char dst[static 32], struct err *e)
{
	if (!serial[0])
		return err_set(e, "S300", EINVAL,
			"the kernel command line names no %s disk (iii.%s=SERIAL)", what, what);
	for (int i = 0; i < FIND_TRIES; i++) {
		if (find_once(serial, dst))
			return 0;
		poll(NULL, 0, FIND_RETRY_MS);
	}
	return err_set(e, "S300", ENODEV, "no disk has the serial %s: the %s disk is missing",
		serial, what);
}

static int make_folder(const char *path, struct err *e)
{
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return err_set(
			e, "S300", errno, "cannot make the folder %s: %s", path, err_str(errno));
	return 0;
}

static int mount_disk(const char *what, const char *node, const char *at, const char *type,
	unsigned long flags, const char *options, struct err *e)
{
	if (mount(node, at, type, flags, options) == 0)
		return 0;
	return err_set(e, "S300", errno, "cannot mount the %s disk (%s): %s%s%s", what, node,
		err_str(errno), errno == EINVAL ? ": it holds no sound file system of type " : "",
		errno == EINVAL ? type : "");
}

/* The root folder of an overlay is the upper one: on the first boot it takes over the image's mode
 * and owner. */
static int make_upper_folders(struct err *e)
{
	struct stat st;

	if (mkdir(UPPER "/upper", 0755) == 0) {
		if (stat(BASE, &st) < 0 || chown(UPPER "/upper", st.st_uid, st.st_gid) < 0 ||
			chmod(UPPER "/upper", st.st_mode & 07777) < 0)
			return err_set(e, "S300", errno, "cannot prepare the upper disk: %s",
				err_str(errno));
	} else if (errno != EEXIST) {
		return err_set(
			e, "S300", errno, "cannot write to the upper disk: %s", err_str(errno));
	}
	return make_folder(UPPER "/work", e);
}

static int mount_overlay(bool upper_is_kept, struct err *e)
{
	/* index and metacopy would only cost: nothing shares these layers and hard links of the
	 * image may break on copy-up. redirect_dir lets programs rename folders of the image, by
	 * writing their old names into the upper layer: not where that layer is kept, since the
	 * next boot may put it over another image. */
	static const char layers[] =
		"lowerdir=" BASE ",upperdir=" UPPER "/upper,workdir=" UPPER "/work,"
		"index=off,metacopy=off,xino=off";
	cleanup_free char *options =
		xasprintf("%s,redirect_dir=%s", layers, upper_is_kept ? "off" : "on");

	if (mount("overlay", DISK_ROOT, "overlay", 0, options) < 0)
		return err_set(e, "S300", errno, "cannot mount the overlay of base and upper: %s",
			err_str(errno));
	return 0;
}

int disk_mount_root(const struct cmdline *words, int *ret_upper_fd, struct err *e)
{
	char base[32], upper[32];
	cleanup_fd int upper_fd = -1;
	int r;

	r = disk_find(words->base, "base", base, e);
	if (r == 0)
		r = disk_find(words->upper, "upper", upper, e);
	if (r < 0)
		return r;
	if (mount("tmpfs", "/mnt", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0700") < 0)
		return err_set(
			e, "S300", errno, "cannot mount a tmpfs on /mnt: %s", err_str(errno));
	if (make_folder(BASE, e) < 0 || make_folder(UPPER, e) < 0 || make_folder(DISK_ROOT, e) < 0)
		return -EIO;
	r = mount_disk("base", base, BASE, "erofs", MS_RDONLY, NULL, e);
	/* noinit_itable: the kernel would otherwise write all inode tables in the background. */
	if (r == 0)
		r = mount_disk("upper", upper, UPPER, "ext4", MS_NOATIME, "noinit_itable", e);
	if (r == 0)
		r = make_upper_folders(e);
	if (r == 0)
		r = mount_overlay(words->source[0] != '\0', e);
	if (r < 0)
		return r;
	upper_fd = open(UPPER, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (upper_fd < 0)
		return err_set(e, "S300", errno, "cannot open the upper disk: %s", err_str(errno));
	*ret_upper_fd = STEAL_FD(upper_fd);
	return 0;
}
