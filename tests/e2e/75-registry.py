#!/usr/bin/env python3
"""`image pull` from a real registry (docker-registry on loopback, filled by skopeo): what works, what
is refused, and what is left when something breaks on the way.

Between the program and the registry sits a Gate: a TCP relay of the test's own that counts what is
asked for, and can hold or cut the connection at a byte. So "in the middle of a download" is a state
here and no guess about time."""
import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request

from harness import BIN, BUILD, SOURCE, case, descendants, files_below, main, wait_until

sys.path.insert(0, os.path.join(SOURCE, "tests/images"))
from oci import ARCH, LAYER, Layout, entry, tar_of  # noqa: E402

HELLO = os.path.join(BUILD, "tests/e2e/static_hello")
FOREIGN = "s390x"
# htpasswd -nbB user secret
PASSWORDS = "user:$2y$05$VHXZZZ7547JKlNdMfnBdhe6k..yUYAciqi/R38WVHbRFf/HlQBfCS\n"
DOCKER = "application/vnd.docker."


# --- the registry ------------------------------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Registry:
    def __init__(self, t, port, folder):
        self.t, self.port, self.folder = t, port, folder
        self.host = f"127.0.0.1:{port}"

    def fill(self, layout, name, *options, tag="latest"):
        """An image of a layout, by skopeo."""
        r = self.t.command(["skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false",
                            "--dest-oci-accept-uncompressed-layers", *options,
                            f"oci:{layout}:{tag}", f"docker://{self.host}/{name}"])
        self.t.equal(r.status, 0, f"exit status of filling {name}")

    def request(self, method, url, data=None, content="application/octet-stream"):
        if not url.startswith("http"):
            url = f"http://{self.host}{url}"
        request = urllib.request.Request(url, data, {"Content-Type": content}, method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return dict(reply.headers)

    def put_blob(self, repository, data):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        where = self.request("POST", f"/v2/{repository}/blobs/uploads/", b"")["Location"]
        self.request("PUT", where + ("&" if "?" in where else "?") + f"digest={digest}", data)
        return {"digest": digest, "size": len(data)}

    def put_manifest(self, repository, reference, document):
        text = json.dumps(document).encode()
        self.request("PUT", f"/v2/{repository}/manifests/{reference}", text, document["mediaType"])
        return {"mediaType": document["mediaType"], "size": len(text),
                "digest": "sha256:" + hashlib.sha256(text).hexdigest()}

    def stored(self, digest):
        """The file a blob lies in."""
        return os.path.join(self.folder, "docker/registry/v2/blobs/sha256", digest[7:9], digest[7:],
                            "data")


@contextlib.contextmanager
def registry(t, auth=False, port=None, folder=None):
    folder = folder or os.path.join(t.scratch, "registry")
    os.makedirs(folder, exist_ok=True)
    port = port or free_port()
    config = os.path.join(t.scratch, "registry.yml")
    passwords = os.path.join(t.scratch, "htpasswd")
    with open(config, "w", encoding="utf-8") as f:
        f.write(f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}}}}}\n"
                f"http: {{addr: '127.0.0.1:{port}'}}\n")
        if auth:
            f.write(f"auth: {{htpasswd: {{realm: test, path: {passwords}}}}}\n")
    with open(passwords, "w", encoding="utf-8") as f:
        f.write(PASSWORDS)
    log = open(os.path.join(t.scratch, "registry.log"), "ab")
    p = t.spawn(["docker-registry", "serve", config], stdout=log, stderr=log)
    log.close()

    def up():
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5).close()
        except urllib.error.HTTPError as e:
            e.close()
            return e.code == 401
        except OSError:
            t.check(p.poll() is None, "docker-registry ended")
            return False
        return True

    try:
        wait_until(up, 60, "docker-registry to answer")
        yield Registry(t, port, folder)
    finally:
        p.kill()
        t.finish(p)


# --- the gate ----------------------------------------------------------------------------------

class Gate:
    """Relays to a registry. `hold_after` bytes of one blob the stream stands still (held is set)
    until release(); shut() cuts every connection and refuses new ones."""

    def __init__(self, target_port, address):
        self.target = target_port
        self.asked = []          # "GET /v2/…" lines, in order
        self.hold_blob = None    # digest whose stream is held
        self.hold_after = 0
        self.held, self.go = threading.Event(), threading.Event()
        self.closed = False
        self.lock = threading.Lock()
        self.sockets, self.threads = set(), []
        self.listener = socket.create_server((address, 0))
        self.host = "%s:%d" % self.listener.getsockname()
        self.start(self.accept)

    def start(self, function, *args):
        thread = threading.Thread(target=function, args=args, daemon=True)
        self.threads.append(thread)
        thread.start()

    def accept(self):
        while not self.closed:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), 30)
            except OSError:
                client.close()
                continue
            with self.lock:
                self.sockets |= {client, server}
            state = {"count": None}
            self.start(self.relay, client, server, state, True)
            self.start(self.relay, server, client, state, False)

    def relay(self, source, sink, state, is_request):
        try:
            while data := source.recv(16384):
                if is_request:
                    self.note(data, state)
                elif state["count"] is not None:
                    state["count"] += len(data)
                    if state["count"] > self.hold_after and not self.go.is_set():
                        self.held.set()
                        self.go.wait()
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def note(self, data, state):
        found = re.findall(rb"(?:^|\r\n)((?:GET|HEAD) /v2/\S+) HTTP/1", data)
        with self.lock:
            self.asked += [f.decode() for f in found]
        for line in found:
            wanted = self.hold_blob and line.endswith(b"/blobs/" + self.hold_blob.encode())
            state["count"] = 0 if wanted else None

    def blobs(self, *digests):
        """How often each blob was asked for."""
        with self.lock:
            return [sum(a.startswith("GET") and a.endswith("/blobs/" + d) for a in self.asked)
                    for d in digests]

    def hold(self, digest, after):
        self.hold_blob, self.hold_after = digest, after
        self.held.clear()
        self.go.clear()

    def release(self):
        self.hold_blob = None
        self.go.set()

    def shut(self):
        self.closed = True
        # close() alone would leave accept() waiting on the socket
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            for s in self.sockets:
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)
        self.go.set()


@contextlib.contextmanager
def gate(target_port, address="127.0.0.1"):
    g = Gate(target_port, address)
    try:
        yield g
    finally:
        g.shut()
        for thread in g.threads:
            thread.join(30)
        for s in g.sockets:
            s.close()


# --- helpers -----------------------------------------------------------------------------------

def own_cache(t):
    t.cache = os.path.join(t.scratch, "cache")


def two_layers(t, name="image", size=3 << 20):
    """A layout with two layers that do not shrink. Returns (path, [digests])."""
    path = os.path.join(t.scratch, name)
    with open(HELLO, "rb") as f:
        hello = [entry("bin/"), entry("bin/hello", f.read(), mode=0o755), entry("pad", os.urandom(size))]
    manifest = Layout(path).image([hello, [entry("second", os.urandom(size))]])
    return path, [layer["digest"] for layer in manifest["layers"]]


def pull_argv(reference, *options):
    return [BIN, "image", "pull", reference, *options]


def pull(t, reference, *options, **env):
    return t.command(pull_argv(reference, *options), env=t.env(**env))


def listed(t):
    r = t.cli("image", "list", "--json")
    t.equal(r.status, 0, "exit status of list")
    return [json.loads(line) for line in r.out.splitlines()]


def nothing_left(t, *, blobs=False):
    """No image, no disk, no temporary file; blobs of a failed pull only where that is meant."""
    t.equal(listed(t), [], "images")
    left = [p for p in files_below(os.path.join(t.cache, "images")) if not p.endswith("images/lock")]
    if blobs:
        left = [p for p in left if "/partial/" not in p or "/blobs/sha256/" not in p]
    t.equal(left, [], "files in the cache")


def refused(t, reference, *words, **env):
    r = pull(t, reference, **env)
    t.ends(r, 1, b"")
    for word in words:
        t.contains(r.err, word.encode(), "stderr")
    return r


# --- what works --------------------------------------------------------------------------------

@case(per_backend=True, smoke=True)
def pull_and_run(t):
    own_cache(t)
    layout, _ = two_layers(t)
    with registry(t) as reg:
        reg.fill(layout, "team/app:1")
        r = pull(t, f"{reg.host}/team/app:1", "--json")
    t.equal(r.status, 0, "exit status of pull")
    lines = [json.loads(line) for line in r.out.splitlines()]
    t.check([x for x in lines if x.get("stage") == "pull" and x["done_bytes"] == x["total_bytes"] > 0],
            "no line says that all bytes are here")
    t.equal(lines[-1]["event"], "done", "the last event")
    t.equal([x["name"] for x in listed(t)], [f"{reg.host}/team/app:1"], "names")
    # the registry is gone: the cache is enough
    r = t.run_program("/bin/hello", image=f"{reg.host}/team/app:1")
    t.equal(r.status, 0, "exit status of run")
    t.equal(t.cli("image", "rm", lines[-1]["digest"][:20]).status, 0, "exit status of rm by digest")
    nothing_left(t)


@case()
def a_warning_names_a_registry_without_tls(t):
    own_cache(t)
    layout, _ = two_layers(t)
    with registry(t) as reg:
        reg.fill(layout, "a")
        r = pull(t, f"{reg.host}/a", SANDBOX_LOG="warn")
    t.equal(r.status, 0, "exit status")
    t.contains(r.err, b"without TLS", "stderr")
    t.contains(r.err, reg.host.encode(), "stderr")


@case()
def docker_manifests_and_lists(t):
    own_cache(t)
    layout, digests = two_layers(t)
    with registry(t) as reg:
        reg.fill(layout, "oci:1")
        reg.fill(layout, "docker:1", "--format", "v2s2")
        r = pull(t, f"{reg.host}/docker:1", "--as", "d")
        t.equal(r.status, 0, "exit status")
        # a list with a foreign platform and build attestations
        tar = tar_of([entry("only", b"x")])
        mine = {"architecture": ARCH, "os": "linux", "config": {"Env": ["WHO=mine"]},
                "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tar).hexdigest()]}}
        layer = {"mediaType": DOCKER + "image.rootfs.diff.tar", **reg.put_blob("list", tar)}
        rows = []
        for arch, os_name in ((FOREIGN, "linux"), ("unknown", "unknown"), (ARCH, "linux")):
            config = json.dumps({**mine, "architecture": arch}).encode()
            rows.append({**reg.put_manifest("list", f"for-{arch}", {
                "schemaVersion": 2, "mediaType": DOCKER + "distribution.manifest.v2+json",
                "config": {"mediaType": DOCKER + "container.image.v1+json",
                           **reg.put_blob("list", config)}, "layers": [layer]}),
                         "platform": {"architecture": arch, "os": os_name}})
        index = reg.put_manifest("list", "1", {
            "schemaVersion": 2, "mediaType": DOCKER + "distribution.manifest.list.v2+json",
            "manifests": rows})
        for reference in (f"{reg.host}/list:1", f"{reg.host}/list@{index['digest']}",
                          f"docker://{reg.host}/list@{rows[2]['digest']}"):
            t.equal(pull(t, reference).status, 0, f"exit status of {reference}")
    images = {x["name"]: x["digest"] for x in listed(t)}
    t.equal(images[f"{reg.host}/list:1"], rows[2]["digest"], "the manifest chosen from the list")
    t.equal(len(set(images.values())), 2, "different images")
    t.equal(len([p for p in files_below(t.cache) if p.endswith(".erofs")]), 2, "disks")


@case()
def layers_of_every_packing(t):
    own_cache(t)
    tar = tar_of([entry("file", b"content")])
    with registry(t) as reg:
        zstd = t.command(["zstd", "-c"], stdin=tar).out
        config = json.dumps({"architecture": ARCH, "os": "linux", "rootfs": {
            "type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tar).hexdigest()] * 2}}).encode()
        for name, kinds in (("plain", [(LAYER, tar)]), ("zstd", [(LAYER + "+zstd", zstd)]),
                            ("both", [(LAYER + "+zstd", zstd), (LAYER, tar)]),
                            # a type that no specification has, but is met; old skopeos refuse it
                            ("docker", [(DOCKER + "image.rootfs.diff.tar.zstd", zstd)])):
            if len(kinds) == 1:
                kinds = kinds * 2
            docker = name == "docker"
            manifest = {"schemaVersion": 2,
                        "mediaType": DOCKER + "distribution.manifest.v2+json" if docker
                        else "application/vnd.oci.image.manifest.v1+json",
                        "config": {"mediaType": DOCKER + "container.image.v1+json" if docker
                                   else "application/vnd.oci.image.config.v1+json",
                                   **reg.put_blob(name, config)},
                        "layers": [{"mediaType": kind, **reg.put_blob(name, data)} for kind, data in kinds]}
            reg.put_manifest(name, "latest", manifest)
            r = pull(t, f"{reg.host}/{name}", "--as", name)
            if docker and r.status:
                t.contains(r.err, b"OCI format", "stderr")
            else:
                t.equal(r.status, 0, f"exit status of {name}")
    # different manifests, the same content: byte for byte the same disk
    disks = {hashlib.sha256(open(p, "rb").read()).hexdigest()
             for p in files_below(t.cache) if p.endswith(".erofs")}
    t.equal(len(disks), 1, "different disks")


@case()
def a_mirror_from_registries_conf(t):
    own_cache(t)
    layout, _ = two_layers(t)
    conf = os.path.join(t.scratch, ".config/containers")
    os.makedirs(conf)
    with registry(t) as reg:
        reg.fill(layout, "copies/app:1")
        with open(os.path.join(conf, "registries.conf"), "w", encoding="utf-8") as f:
            f.write(f'[[registry]]\nprefix = "origin.invalid/team"\nlocation = "origin.invalid/team"\n'
                    f'[[registry.mirror]]\nlocation = "{reg.host}/copies"\ninsecure = true\n')
        r = pull(t, "origin.invalid/team/app:1")
        t.equal(r.status, 0, "exit status")
    t.equal([x["name"] for x in listed(t)], ["origin.invalid/team/app:1"], "names")


@case()
def credentials(t):
    own_cache(t)
    layout, _ = two_layers(t)
    token = base64.b64encode(b"user:secret").decode()

    def write(path, text):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    with registry(t) as reg:
        reg.fill(layout, "private:1")
        folder, port = reg.folder, reg.port
    with registry(t, auth=True, port=port, folder=folder) as reg:
        reference = f"{reg.host}/private:1"
        good = json.dumps({"auths": {reg.host: {"auth": token}}})
        bad = json.dumps({"auths": {reg.host: {"auth": base64.b64encode(b"user:wrong").decode()}}})
        refused(t, reference, "skopeo login", reg.host)
        nothing_left(t)
        explicit = write(os.path.join(t.scratch, "auth/good.json"), good)
        wrong = write(os.path.join(t.scratch, "auth/bad.json"), bad)
        # skopeo would silently be nobody with a file that is not there
        refused(t, reference, "REGISTRY_AUTH_FILE", "/no/such/auth.json",
                REGISTRY_AUTH_FILE="/no/such/auth.json")
        refused(t, reference, REGISTRY_AUTH_FILE=wrong)
        nothing_left(t)
        t.equal(pull(t, reference, "--as", "a", REGISTRY_AUTH_FILE=explicit).status, 0, "by variable")
        t.equal(t.cli("image", "rm", "a").status, 0, "exit status of rm")
        t.equal(pull(t, reference, "--as", "b", "--authfile", explicit).status, 0, "by option")
        t.equal(t.cli("image", "rm", "b").status, 0, "exit status of rm")
        write(os.path.join(t.scratch, ".docker/config.json"), good)
        r = pull(t, reference, "--as", "c")
        t.equal(r.status, 0, "by the user's own configuration")
    for r in t.results:
        t.check(b"secret" not in r.out + r.err and token.encode() not in r.out + r.err,
                "a credential was printed")


# --- what is refused ---------------------------------------------------------------------------

@case()
def what_is_not_there(t):
    own_cache(t)
    layout, _ = two_layers(t)
    none = "sha256:" + "0" * 64
    with registry(t) as reg:
        reg.fill(layout, "app:1")
        refused(t, f"{reg.host}/app:2", f"{reg.host}/app:2", "manifest unknown", "the tag")
        refused(t, f"{reg.host}/nothing:1", f"{reg.host}/nothing:1")
        refused(t, f"{reg.host}/app@{none}", none)
        gone = reg.host
    refused(t, f"{gone}/app:1", "connection refused")
    refused(t, "no-such-host.invalid/app", "no-such-host.invalid")
    nothing_left(t)


@case()
def a_registry_without_tls_must_be_named(t):
    own_cache(t)
    layout, _ = two_layers(t)
    with registry(t) as reg, gate(reg.port, "127.0.0.2") as g:
        reg.fill(layout, "app:1")
        refused(t, f"{g.host}/app:1", "III_INSECURE_REGISTRIES")
        nothing_left(t)
        refused(t, f"{g.host}/app:1", III_INSECURE_REGISTRIES="127.0.0.3,127.0.0.2:1,27.0.0.2")
        for number, value in enumerate(("127.0.0.2", f"other.example, {g.host}")):
            r = pull(t, f"{g.host}/app:1", "--as", f"n{number}", III_INSECURE_REGISTRIES=value)
            t.equal(r.status, 0, f"exit status with {value}")


@case()
def wrong_architecture(t):
    own_cache(t)
    path = os.path.join(t.scratch, "foreign")
    manifest = Layout(path).image([[entry("f", os.urandom(100000))]], arch=FOREIGN)
    layer = manifest["layers"][0]["digest"]
    with registry(t) as reg, gate(reg.port) as g:
        reg.fill(path, "single:1")
        single = reg.put_manifest("single", "copy", manifest)
        reg.put_manifest("single", "list", {
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{**single, "platform": {"architecture": FOREIGN, "os": "linux"}}]})
        for tag in ("1", "list"):
            refused(t, f"{g.host}/single:{tag}", f"{g.host}/single:{tag}", f"linux/{ARCH}", FOREIGN)
        t.equal(g.blobs(layer), [0], "downloads of a layer that is of no use")
    nothing_left(t)


@case()
def content_that_is_not_what_its_digest_says(t):
    own_cache(t)
    layout, digests = two_layers(t)
    with registry(t) as reg:
        reg.fill(layout, "app:1")
        with open(reg.stored(digests[1]), "r+b") as f:
            f.seek(1000)
            byte = f.read(1)[0]
            f.seek(1000)
            f.write(bytes([byte ^ 1]))
        refused(t, f"{reg.host}/app:1")
        nothing_left(t, blobs=True)
        os.truncate(reg.stored(digests[1]), 1000)
        refused(t, f"{reg.host}/app:1")
        nothing_left(t, blobs=True)


@case()
def documents_of_a_size_that_is_not_meant(t):
    own_cache(t)
    with registry(t) as reg:
        config = reg.put_blob("big", b" " * (5 << 20) + b"{}")
        reg.put_manifest("big", "1", {
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **config}, "layers": []})
        refused(t, f"{reg.host}/big:1", "4194304")
        helm = reg.put_blob("chart", b"{}")
        reg.put_manifest("chart", "1", {
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.cncf.helm.config.v1+json", **helm}, "layers": []})
        refused(t, f"{reg.host}/chart:1", "not a container image", "helm")
    nothing_left(t)


@case()
def words_of_a_reference_never_become_options(t):
    own_cache(t)
    for reference in ("-v", "--help-me", "docker://--debug", "a b", "$(id)", "a;id", "a/../b",
                      "docker://h.x/../../v2", "dir:/etc", "docker-daemon:x", "tarball:/etc/passwd"):
        r = t.cli("image", "pull", "--", reference)
        t.check(r.status in (1, 2), f"exit status of {reference!r} is {r.status}")
        t.check(r.err and not r.out, f"{reference!r}: no word on stderr")
    nothing_left(t)


# --- several at once ---------------------------------------------------------------------------

@case(smoke=True)
def six_pulls_at_once_are_one_download(t):
    own_cache(t)
    layout, digests = two_layers(t)
    with registry(t) as reg, gate(reg.port) as g:
        reg.fill(layout, "app:1")
        g.hold(digests[0], 100_000)
        ps = [t.spawn(pull_argv(f"{g.host}/app:1")) for _ in range(6)]
        t.check(g.held.wait(120), "no download began")
        # All six are under way, and none has got anything yet.
        t.check(all(p.poll() is None for p in ps), "a pull ended before its layers were there")
        g.release()
        for p in ps:
            t.equal(t.finish(p).status, 0, "exit status")
        t.equal(g.blobs(*digests), [1, 1], "downloads of the layers")
        # again, and by another name: asked, but nothing fetched
        t.equal(pull(t, f"{g.host}/app:1").status, 0, "exit status")
        t.equal(pull(t, f"{g.host}/app", "--as", "x").status, 1, "exit status of a tag that is not there")
        reg.fill(layout, "app:latest")
        t.equal(pull(t, f"{g.host}/app").status, 0, "exit status")
        t.equal(g.blobs(*digests), [1, 1], "downloads of the layers")
    t.equal(len([p for p in files_below(t.cache) if p.endswith(".erofs")]), 1, "disks")


@case()
def two_names_of_one_image_are_one_download(t):
    own_cache(t)
    layout, digests = two_layers(t)
    with registry(t) as reg, gate(reg.port) as g:
        reg.fill(layout, "one:1")
        reg.fill(layout, "two:1")
        g.hold(digests[0], 100_000)
        ps = [t.spawn(pull_argv(f"{g.host}/{name}:1")) for name in ("one", "two")]
        t.check(g.held.wait(120), "no download began")
        wait_until(lambda: len([a for a in g.asked if "/manifests/" in a and a.startswith("GET")]) >= 4,
                   120, "both manifests to be asked for")
        g.release()
        for p in ps:
            t.equal(t.finish(p).status, 0, "exit status")
        t.equal(g.blobs(*digests), [1, 1], "downloads of the layers")
    t.equal(len(listed(t)), 2, "names")


@case()
def those_who_wait_hear_of_the_failure(t):
    own_cache(t)
    layout, digests = two_layers(t)
    with registry(t) as reg, gate(reg.port) as g:
        reg.fill(layout, "app:1")
        g.hold(digests[0], 100_000)
        ps = [t.spawn(pull_argv(f"{g.host}/app:1")) for _ in range(3)]
        t.check(g.held.wait(120), "no download began")
        g.shut()
        for p in ps:
            r = t.finish(p)
            t.equal(r.status, 1, "exit status")
            t.contains(r.err, b"app:1", "stderr")
        nothing_left(t, blobs=True)
        # the next one tries anew
        with gate(reg.port) as again:
            t.equal(pull(t, f"{again.host}/app:1").status, 0, "exit status")


# --- breaking off ------------------------------------------------------------------------------

def in_the_middle(t, g, digests):
    """A pull whose second layer stands still and whose first is complete."""
    g.hold(digests[1], 500_000)
    p = t.spawn(pull_argv(f"{g.host}/app:1"))
    t.check(g.held.wait(120), "no download began")
    wait_until(lambda: [f for f in files_below(t.cache) if f.endswith(digests[0][7:])], 120,
               "the first layer")
    return p


@case(smoke=True)
def kill_9_in_the_middle_then_again(t):
    own_cache(t)
    layout, digests = two_layers(t)
    with registry(t) as reg, gate(reg.port) as g:
        reg.fill(layout, "app:1")
        p = in_the_middle(t, g, digests)
        helpers = descendants(p.pid)
        t.check(helpers, "there is no helper process")
        p.kill()
        t.finish(p)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") and
                                   open(f"/proc/{pid}/stat").read().split(") ")[-1][0] not in "ZX"
                                   for pid in helpers), 60, "the helper to go")
        t.equal(listed(t), [], "images")
        g.release()
        t.equal(pull(t, f"{g.host}/app:1").status, 0, "exit status of the next pull")
        # what was complete was not fetched again
        t.equal(g.blobs(*digests), [1, 2], "downloads of the layers")
    left = [f for f in files_below(t.cache) if "images/partial/" in f or "images/tmp/" in f]
    t.equal(left, [], "leftovers")


@case()
def control_c_leaves_nothing(t):
    own_cache(t)
    layout, digests = two_layers(t)
    for number in (signal.SIGINT, signal.SIGTERM):
        with registry(t) as reg, gate(reg.port) as g:
            reg.fill(layout, "app:1")
            p = in_the_middle(t, g, digests)
            p.send_signal(number)
            r = t.finish(p)
            t.equal(r.status, 1, "exit status")
            t.contains(r.err, b"cancelled", "stderr")
            nothing_left(t)


@case()
def the_registry_vanishes_in_the_middle(t):
    own_cache(t)
    layout, digests = two_layers(t)
    with registry(t) as reg, gate(reg.port) as g:
        reg.fill(layout, "app:1")
        p = in_the_middle(t, g, digests)
        g.shut()
        r = t.finish(p)
        t.ends(r, 1, b"")
        t.contains(r.err, b"app:1", "stderr")
        nothing_left(t, blobs=True)
        t.equal(t.cli("image", "gc", "--all").status, 0, "exit status of gc")
        nothing_left(t)


@case()
def a_disk_too_small(t):
    own_cache(t)
    os.mkdir(t.cache)
    layout, _ = two_layers(t)
    # 4m: not even the download fits; 9m: the disk does not; 40m: all is well
    script = ('mount -t tmpfs -o size=4m none "$1" && for size in 4m 9m 40m; do '
              'mount -o remount,size=$size "$1"; "$2" image pull "$3"; echo "rc=$?"; '
              'find "$1" -type f -size +1000k | wc -l; done')
    with registry(t) as reg:
        reg.fill(layout, "app:1")
        r = t.command(["unshare", "-m" if os.getuid() == 0 else "-rm", "sh", "-c", script, "sh",
                       t.cache, BIN, f"{reg.host}/app:1"])
    t.equal(r.status, 0, "exit status")
    rc = re.findall(rb"rc=(\d)\n(\d+)", r.out)
    t.equal(rc, [(b"1", b"0"), (b"1", b"0"), (b"0", b"1")], "exit statuses and large files")
    t.contains(r.err, b"are free", "stderr of the first")
    t.contains(r.err.lower(), b"no space left", "stderr of the second")


main()
