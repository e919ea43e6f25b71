# A worker for 90-chaos.py. It numbers lines of a journal on its own disk and says a number only when
# it is safe there; at each start it says how many it found. PLAN tells how it ends:
#   stay        at SIGTERM, with status 0        stubborn     not before it is killed
#   exit:N:C    after N lines, with status C     crash:N      after N lines, by SIGSEGV
#   flood:N     like stay, after N lines of noise
import os
import signal
import sys
import time

JOURNAL = "/var/lib/journal"
LINE = 16
FAILED = 44  # the journal cannot be read or written


def say(text):
    print(text, flush=True)


def fail(text):
    say(text)
    sys.exit(FAILED)


def found(fd):
    """How many whole lines there are. What is torn or was lost at the end, when the disk was full
    or the VM was killed, is cut off: whether a line that was told is among it is for the test."""
    whole = os.fstat(fd).st_size // LINE
    data = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
    for n in range(1, whole + 1):
        if data[(n - 1) * LINE:n * LINE] != b"%015d\n" % n:
            say(f"damaged at line {n}: {data[(n - 1) * LINE:n * LINE]!r}")
            whole = n - 1
            break
    os.ftruncate(fd, whole * LINE)
    os.lseek(fd, whole * LINE, os.SEEK_SET)
    return whole


def main():
    plan, *numbers = os.environ["PLAN"].split(":")
    numbers = [int(x) for x in numbers]
    if plan == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if plan == "flood":
        for n in range(numbers[0]):
            say(f"noise {n} " + "~" * 200)
    try:
        fd = os.open(JOURNAL, os.O_RDWR | os.O_CREAT, 0o600)
        n = found(fd)
        folder = os.open(os.path.dirname(JOURNAL), os.O_RDONLY)
        os.fsync(folder)
        say(f"journal {n}")
        for written in range(1, sys.maxsize):
            n += 1
            os.write(fd, b"%015d\n" % n)
            os.fsync(fd)
            say(f"ack {n}")
            if plan in ("exit", "crash") and written == numbers[0]:
                break
            time.sleep(0.02)
    except OSError as e:
        fail(f"journal: {e}")
    if plan == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    sys.exit(numbers[1])


main()
