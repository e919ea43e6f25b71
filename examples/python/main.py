"""A sandbox from Python: create, write, exec, read, stop, and what to do with errors.

    sandbox-libkrun standalone --vmm auto     in another terminal, or an iii engine with the adapter
    pip install -r requirements.txt
    python3 main.py                           III_URL says where, default ws://127.0.0.1:49134
"""
import json
import os
import sys
import time

os.environ.setdefault("OTEL_ENABLED", "false")

from iii import InitOptions, InvocationError, register_worker  # noqa: E402

URL = os.environ.get("III_URL", "ws://127.0.0.1:49134")
TIMEOUT_MS = 330000  # longer than a first create, which may have to fetch the image
RETRIES = 3


class SandboxError(Exception):
    """What failed, in the adapter's words."""

    def __init__(self, e):
        super().__init__(f"{e['code']}: {e['message']}")
        self.code, self.fix, self.retryable = e["code"], e["fix"], e["retryable"]
        self.docs_url = e["docs_url"]


def as_sandbox_error(error):
    """Errors of sandbox functions are JSON inside the message; others (an unknown function, a lost
    engine) are not."""
    mark, text = "handler error: ", error.message
    if mark + "{" not in text:
        return error
    return SandboxError(json.loads(text[text.index(mark) + len(mark):]))


def once(iii, name, payload):
    try:
        return iii.trigger({"function_id": f"sandbox-libkrun::{name}", "payload": payload,
                            "timeout_ms": TIMEOUT_MS})
    except InvocationError as error:
        raise as_sandbox_error(error) from error


def call(iii, name, payload):
    """Calls a function, and does what its error says can be done."""
    for tries in range(RETRIES + 1):
        try:
            return once(iii, name, payload)
        except SandboxError as error:
            if tries == RETRIES:
                raise
            if error.retryable:
                time.sleep(2 ** tries)
            elif error.fix and "inner_code" not in error.fix:
                # (`run` puts what happened into `fix`, with inner_code: nothing to merge.)
                print(f"{error.code}: trying again with {json.dumps(error.fix)}")
                payload = {**payload, **error.fix}
            else:
                raise


def use(iii, sandbox_id):
    # The folder is not there: the error S211 brings {"parents": true} as its fix.
    call(iii, "fs::write", {
        "sandbox_id": sandbox_id, "path": "/work/squares.py",
        "content": "for n in range(4):\n    print(n * n)\n"
                   "open('/work/done.txt', 'w').write('all done')\n"})

    run = call(iii, "exec", {"sandbox_id": sandbox_id, "argv": ["python3", "/work/squares.py"],
                             "timeout_ms": 60000})
    print(f"exit {run['exit_code']}: {' '.join(run['stdout'].split())}")

    # A small text file comes along as `body`; larger ones and other bytes through `content`.
    file = call(iii, "fs::read", {"sandbox_id": sandbox_id, "path": "/work/done.txt"})
    print(f"read {file['size']} bytes: {file['body']}")

    # A program that fails is no error: look at exit_code. A call that fails is one.
    failed = call(iii, "exec", {"sandbox_id": sandbox_id,
                                "argv": ["python3", "-c", "raise SystemExit(3)"]})
    print(f"exit {failed['exit_code']}")
    try:
        call(iii, "fs::read", {"sandbox_id": sandbox_id, "path": "/nothing/here"})
    except SandboxError as error:
        if error.code != "S211":
            raise
        print(f"{error.code} as expected")


def main():
    iii = register_worker(URL, InitOptions(worker_name=f"sandbox-example-{os.getpid()}"))
    try:
        sandbox_id = call(iii, "create", {"image": "python", "memory_mb": 256,
                                          "idle_timeout_secs": 120})["sandbox_id"]
        print("created")
        try:
            use(iii, sandbox_id)
        finally:
            call(iii, "stop", {"sandbox_id": sandbox_id, "wait": True})
            print("stopped")
    except SandboxError as error:
        print(f"{error}\nsee {error.docs_url}", file=sys.stderr)
        return 1
    finally:
        iii.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
