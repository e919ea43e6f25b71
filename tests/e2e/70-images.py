#!/usr/bin/env python3
"""`image`: import, list, rm, gc; images good, odd and hostile; what a cache must never do."""
import json
import os
import random
import subprocess
import sys
import tarfile
import time

from harness import BIN, BUILD, SOURCE, case, files_below, main, python_layout

sys.path.insert(0, os.path.join(SOURCE, "tests/images"))
from oci import Layout, entry, tar_of  # noqa: E402

HELLO = os.path.join(BUILD, "tests/e2e/static_hello")


def own_cache(t):
    """A cache of this case's own: the shared one must not change."""
    t.cache = os.path.join(t.scratch, "cache")
    return t.cache


def hello_layer():
    with open(HELLO, "rb") as f:
        return [entry("bin/"), entry("bin/hello", f.read(), mode=0o755)]


def listed(t):
    r = t.cli("image", "list", "--json")
    t.equal(r.status, 0, "exit status of list")
    return [json.loads(line) for line in r.out.splitlines()]


@case(smoke=True)
def import_list_remove(t):
    own_cache(t)
    t.equal(listed(t), [], "list of an empty cache")
    r = t.cli("image", "import", f"oci:{python_layout()}:python", "--as", "python")
    t.equal(r.status, 0, "exit status of import")
    entries = listed(t)
    t.equal(len(entries), 1, "number of images listed")
    r = t.cli("image", "list")
    t.equal(r.status, 0, "exit status of list")
    t.contains(r.out, b"python", "table")
    t.equal(t.cli("image", "rm", "python").status, 0, "exit status of rm")
    t.equal(listed(t), [], "list after rm")
    r = t.cli("image", "rm", "python")
    t.equal(r.status, 1, "exit status of rm of what is not there")
    t.contains(r.err, b"python", "stderr")


@case(smoke=True)
def import_again_changes_nothing(t):
    own_cache(t)
    source = f"oci:{python_layout()}:python"
    t.equal(t.cli("image", "import", source, "--as", "python").status, 0, "exit status")
    before = {p: os.stat(p).st_ino for p in files_below(t.cache) if p.endswith(".erofs")}
    t.check(before, "no disk in the cache")
    t.equal(t.cli("image", "import", source, "--as", "python").status, 0, "exit status")
    t.equal({p: os.stat(p).st_ino for p in files_below(t.cache) if p.endswith(".erofs")}, before,
            "disks in the cache")
    # A second name for the same image needs no second disk.
    t.equal(t.cli("image", "import", source, "--as", "other").status, 0, "exit status")
    t.equal({p: os.stat(p).st_ino for p in files_below(t.cache) if p.endswith(".erofs")}, before,
            "disks in the cache")
    t.equal(sorted(x["name"] for x in listed(t)), ["other", "python"], "names listed")


@case()
def disks_are_the_same_bytes_every_time(t):
    digests = []
    for n in (1, 2):
        t.cache = os.path.join(t.scratch, f"cache{n}")
        r = t.cli("image", "import", f"oci:{python_layout()}:python", "--as", "python")
        t.equal(r.status, 0, "exit status")
        disks = [p for p in files_below(t.cache) if p.endswith(".erofs")]
        t.equal(len(disks), 1, "disks in the cache")
        t.ends(t.command(["fsck.erofs", disks[0]]), 0)
        digests.append(t.command(["sha256sum", disks[0]]).out.split()[0])
    t.equal(digests[0], digests[1], "digests of the two disks")


@case(per_backend=True)
def archives(t):
    own_cache(t)
    layout = python_layout()
    archive = os.path.join(t.scratch, "image.oci.tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(layout, ".")
    docker = os.path.join(t.scratch, "image.docker.tar")
    r = t.command(["skopeo", "--insecure-policy", "copy", "-q", f"oci:{layout}:python",
                   f"docker-archive:{docker}:localhost/python:1"], timeout=300)
    t.equal(r.status, 0, "exit status of skopeo")
    for source in (f"oci-archive:{archive}", f"docker-archive:{docker}"):
        t.equal(t.cli("image", "import", source, "--as", "it").status, 0, f"import of {source}")
        t.ends(t.run_code("print(6*7)", lang="python", image="it"), 0, b"42\n")
        t.equal(t.cli("image", "rm", "it").status, 0, "exit status of rm")


@case()
def progress_as_json_lines(t):
    own_cache(t)
    r = t.cli("image", "import", f"oci:{python_layout()}:python", "--as", "python", "--json")
    t.equal(r.status, 0, "exit status")
    lines = [json.loads(line) for line in r.out.splitlines()]
    t.check(len(lines) >= 1, "no JSON line")
    t.check(all(isinstance(x, dict) for x in lines), "a line is no object")
    t.contains(r.out, b"done", "the last stage")


@case(per_backend=True)
def an_image_with_one_static_file(t):
    own_cache(t)
    layout = os.path.join(t.scratch, "img")
    Layout(layout).image([hello_layer()])
    t.equal(t.cli("image", "import", f"oci:{layout}", "--as", "tiny").status, 0, "exit status")
    r = t.run_program("/bin/hello", "a b", image="tiny")
    t.equal(r.status, 0, "exit status")
    t.equal(sorted(r.out.splitlines()),
            sorted([b"cwd=/ uid=0 gid=0", b"arg=a b", b"env=HOME=/root",
                    b"env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]), "stdout")


@case(per_backend=True)
def the_image_configuration_is_hostile_input(t):
    # USER, WORKDIR, ENTRYPOINT and CMD do not concern `run`; Env does, below what the caller sets.
    own_cache(t)
    layout = os.path.join(t.scratch, "img")
    Layout(layout).image([hello_layer()], config={
        "User": "app:staff", "WorkingDir": "/etc/ loglevel=7 init=/bin/sh",
        "Entrypoint": ["/bin/false"], "Cmd": ["--evil"],
        "Env": ["PATH=/bin", "A=image", "B=image\nC=injected", "no-equals-sign", "=x"]})
    t.equal(t.cli("image", "import", f"oci:{layout}", "--as", "odd").status, 0, "exit status")
    r = t.run_program("hello", image="odd", options=["--env", "A=mine"])
    t.equal(r.status, 0, "exit status")
    t.contains(r.out, b"cwd=/ uid=0 gid=0\n", "stdout")
    t.contains(r.out, b"env=A=mine\n", "stdout")
    t.contains(r.out, b"env=PATH=/bin\n", "stdout")
    t.contains(r.out, b"env=B=image\nC=injected\n", "stdout")
    t.check(b"A=image" not in r.out, "the image's value came through")
    r = t.run_program("hello", image="odd", options=["--env", "A=mine", "--workdir", "/bin"])
    t.contains(r.out, b"cwd=/bin ", "stdout")


@case(per_backend=True)
def layers_that_hide_replace_and_link(t):
    own_cache(t)
    link, sym = tarfile.LNKTYPE, tarfile.SYMTYPE
    layers = [
        hello_layer() + [entry("a/"), entry("a/one", b"1"), entry("a/two", b"2"), entry("d/"),
                         entry("d/x", b"x"), entry("f", b"file"), entry("l/"), entry("l/orig", b"orig")],
        [entry("a/.wh.one"), entry("d/"), entry("d/.wh..wh..opq"), entry("d/y", b"y"),
         entry(".wh.f"), entry("f/"), entry("f/in", b"in"),
         entry("l/again", kind=link, link="l/orig"), entry("s", kind=sym, link="/a/two")],
        [entry("a/one", b"new"), entry("f", b"file again"), entry("s", b"no link now")],
    ]
    layout = os.path.join(t.scratch, "img")
    Layout(layout).image(layers)
    t.equal(t.cli("image", "import", f"oci:{layout}", "--as", "layered").status, 0, "exit status")
    disk = [p for p in files_below(t.cache) if p.endswith(".erofs")][0]
    out = os.path.join(t.scratch, "out")
    t.equal(t.command(["fsck.erofs", f"--extract={out}", disk]).status, 0, "fsck.erofs")

    def read(name):
        with open(os.path.join(out, name), "rb") as f:
            return f.read()

    t.equal(read("a/one"), b"new", "a/one")
    t.equal(read("a/two"), b"2", "a/two")
    t.equal(sorted(os.listdir(os.path.join(out, "d"))), ["y"], "the opaque folder")
    t.equal(read("f"), b"file again", "a folder that became a file again")
    t.equal(read("s"), b"no link now", "a link that became a file")
    t.equal(read("l/again"), b"orig", "a hard link to a lower layer")
    r = t.run_program("/bin/hello", image="layered")
    t.equal(r.status, 0, "exit status")


def refused(t, layout, *words):
    """The import fails, says why, and leaves no image and no file."""
    before = files_below(t.cache)
    r = t.cli("image", "import", f"oci:{layout}", "--as", "bad")
    t.equal(r.status, 1, f"exit status of the import of {layout}")
    for word in words:
        t.contains(r.err, word.encode(), "stderr")
    t.equal(listed(t), [], f"images after {layout}")
    new = {p for p in files_below(t.cache) - before if os.path.getsize(p) > 0}  # the store's lock is 0
    t.equal(new, set(), f"files in the cache after {layout}")
    return r


@case(smoke=True)
def damaged_images_are_refused(t):
    own_cache(t)
    t.equal(listed(t), [], "images")

    def layout(name):
        return os.path.join(t.scratch, name)

    def made(name, *args, **named):
        lay = Layout(layout(name))
        return lay, lay.image(*args, **named)

    lay, m = made("flipped", [hello_layer()])
    path = lay.blob_path(m["layers"][0]["digest"])
    with open(path, "r+b") as f:
        f.seek(100)
        byte = f.read(1)[0]
        f.seek(100)
        f.write(bytes([byte ^ 1]))
    refused(t, layout("flipped"), m["layers"][0]["digest"][7:19])

    lay, m = made("short", [hello_layer()])
    path = lay.blob_path(m["layers"][0]["digest"])
    os.truncate(path, os.path.getsize(path) - 10)
    refused(t, layout("short"), m["layers"][0]["digest"][7:19])

    lay, m = made("missing", [hello_layer()])
    os.unlink(lay.blob_path(m["layers"][0]["digest"]))
    refused(t, layout("missing"), m["layers"][0]["digest"][7:19])

    made("arch", [hello_layer()], arch="s390x")
    refused(t, layout("arch"), "s390x")

    tar = tar_of(hello_layer())
    made("cut", [tar[: len(tar) // 2]])
    refused(t, layout("cut"))

    lay = Layout(layout("noise"))
    lay.image([os.urandom(5000)], pack=False)
    refused(t, layout("noise"))

    lay, m = made("diff", [hello_layer()])
    lay2 = Layout(layout("diff2"))
    other = lay2.image([[entry("other", b"x")]])
    # The configuration of another image: its diff ids are not those of the layers.
    lay3 = Layout(layout("diff3"))
    for source in (lay, lay2):
        for name in os.listdir(os.path.join(source.path, "blobs/sha256")):
            os.link(os.path.join(source.path, "blobs/sha256", name),
                    os.path.join(lay3.path, "blobs/sha256", name))
    lay3.add_manifest({**m, "config": other["config"]})
    refused(t, layout("diff3"), m["layers"][0]["digest"][7:19])

    t.equal(t.cli("image", "import", "oci:/no/such/layout", "--as", "bad").status, 1, "exit status")
    t.equal(t.cli("image", "import", "nonsense", "--as", "bad").status in (1, 2), True, "exit status")


@case(smoke=True)
def paths_that_lead_out_touch_nothing(t):
    own_cache(t)
    victim = os.path.join(t.scratch, "victim")
    os.mkdir(victim)
    up = "../" * 40
    sym = tarfile.SYMTYPE
    for number, entries in enumerate((
            [entry(f"{up}{victim}/dotdot", b"x")],
            [entry(f"a/../{up}{victim}/dotdot2", b"x")],
            [entry("link", kind=sym, link=victim), entry("link/through", b"x")],
            [entry("link", kind=sym, link=f"{up}{victim}"), entry("link/through2", b"x")],
            [entry("hard", kind=tarfile.LNKTYPE, link=f"{up}{victim}/none")],
            [entry(victim + "/absolute", b"x")])):
        layout = os.path.join(t.scratch, f"img{number}")
        Layout(layout).image([hello_layer(), entries])
        r = t.cli("image", "import", f"oci:{layout}", "--as", f"trick{number}")
        t.check(r.status in (0, 1), f"exit status is {r.status}")
        t.equal(os.listdir(victim), [], f"files made on the host by trick {number}")
        if r.status:
            t.check(r.err, "a refusal without a word")


@case()
def absurd_sizes_are_refused(t):
    own_cache(t)
    # A file that claims more than any limit, whose bytes never come.
    layout = os.path.join(t.scratch, "huge")
    info, _ = entry("huge", size=1 << 40)
    Layout(layout).image([info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)])
    refused(t, layout)
    # More path components than any limit.
    layout = os.path.join(t.scratch, "deep")
    Layout(layout).image([[entry("d/" * 200)]])
    refused(t, layout)


@case(smoke=True)
def four_imports_at_once_make_one_disk(t):
    own_cache(t)
    ps = [t.spawn([BIN, "image", "import",
                   f"oci:{python_layout()}:python", "--as", "python"]) for _ in range(4)]
    for p in ps:
        t.equal(t.finish(p).status, 0, "exit status")
    t.equal(len([p for p in files_below(t.cache) if p.endswith(".erofs")]), 1, "disks")
    t.equal(len(listed(t)), 1, "images")


@case()
def kill_9_during_an_import(t):
    own_cache(t)
    chance = random.Random(2)
    source = f"oci:{python_layout()}:python"
    argv = [BIN, "image", "import", source,
            "--as", "python"]
    for _ in range(10):
        p = t.spawn(argv)
        time.sleep(chance.uniform(0, 1))
        p.kill()
        t.finish(p)
        for image in listed(t):  # either absent or whole
            t.check(image, "an empty entry")
    t.equal(t.cli("image", "import", source, "--as", "python").status, 0, "exit status afterwards")
    t.equal(t.cli("image", "gc").status, 0, "exit status of gc")
    disks = [p for p in files_below(t.cache) if p.endswith(".erofs")]
    t.equal(len(disks), 1, "disks")
    t.ends(t.command(["fsck.erofs", disks[0]]), 0)
    big = [p for p in files_below(t.cache) if os.path.getsize(p) > 1 << 20 and p not in disks]
    t.equal(big, [], "large files besides the disk")


@case()
def a_full_disk_leaves_no_entry(t):
    own_cache(t)
    os.mkdir(t.cache)
    script = ('mount -t tmpfs -o size=30m none "$1" && "$2" image import "$3" --as python; echo "rc=$?";'
              '"$2" image list --json; find "$1" -type f -size +1000k')
    r = t.command(["unshare", "-m" if os.getuid() == 0 else "-rm", "sh", "-c", script, "sh", t.cache,
                   BIN, f"oci:{python_layout()}:python"])
    t.ends(r, 0, b"rc=1\n")
    t.contains(r.err, b"No space left", "stderr")


@case(per_backend=True)
def eviction_spares_what_is_in_use(t):
    own_cache(t)
    layout = os.path.join(t.scratch, "img")
    Layout(layout).image([hello_layer()])
    t.equal(t.cli("image", "import", f"oci:{layout}", "--as", "idle").status, 0, "exit status")
    t.equal(t.cli("image", "import", f"oci:{python_layout()}:python", "--as", "busy").status, 0,
            "exit status")
    p = t.spawn(t.run_argv("echo up; read x; cat /usr/lib/python3.11/*.py | wc -c", image="busy",
                           options=["-i", "-q"]), stdin=subprocess.PIPE)
    t.wait_for_output(p, b"up\n")
    t.equal(t.cli("image", "gc", "--max", "1K").status, 0, "exit status of gc")
    names = json.dumps(listed(t))
    t.check("busy" in names and "idle" not in names, f"images after gc: {names}")
    r = t.finish(p, stdin=b"go\n")
    t.equal(r.status, 0, "exit status")
    t.check(int(r.out) > 1_000_000, f"the running sandbox read {r.out!r} bytes of its image")


@case(per_backend=True)
def an_image_removed_under_a_running_sandbox(t):
    own_cache(t)
    t.equal(t.cli("image", "import", f"oci:{python_layout()}:python", "--as", "p").status, 0, "status")
    p = t.spawn(t.run_argv("echo up; read x; cat /usr/lib/python3.11/*.py | wc -c", image="p",
                           options=["-i", "-q"]), stdin=subprocess.PIPE)
    t.wait_for_output(p, b"up\n")
    r = t.cli("image", "rm", "p")
    t.check(r.status in (0, 1), f"exit status of rm is {r.status}")
    if r.status:
        t.contains(r.err, b"in use", "stderr of a refusal")
    r = t.finish(p, stdin=b"go\n")
    t.equal(r.status, 0, "exit status")
    t.check(int(r.out) > 1_000_000, f"the running sandbox read {r.out!r} bytes of its image")


@case()
def an_image_that_is_not_there(t):
    own_cache(t)
    r = t.run_code("x", image="python")
    t.ends(r, 125, b"")
    t.contains(r.err, b"S101", "stderr")
    t.contains(r.err, b"python", "stderr")


main()
