"""A reader of a worker VM's log, for while other things happen."""
import threading

from compose import iii


class Follower(threading.Thread):
    """Reads to the end of the log. `vm` is the boot whose log it is."""

    def __init__(self, compose, vm):
        super().__init__(daemon=True)
        self.compose, self.vm, self.records, self.error = compose, vm, [], None
        self.ws = compose.open_log(vm, follow=True)
        self.start()

    def run(self):
        try:
            self.records = self.compose.read_records(self.ws)
        except Exception as e:  # pylint: disable=broad-except
            self.error = e

    def lost(self):
        """Its connection ended without a Close frame: the daemon died."""
        return isinstance(self.error, iii.Lost)

    def lines(self, t):
        """All of them, once the log has ended."""
        self.join(60)
        t.check(not self.is_alive(), "the followed log has ended with its worker")
        if self.error:
            raise self.error
        t.equal({r["instance"] for r in self.records} - {self.vm[1]}, set(),
                "other instances in the log")
        return [r["line"] for r in self.records]
