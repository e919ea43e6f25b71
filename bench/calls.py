#!/usr/bin/env python3
"""A call of adapter::info at 1,000 calls a second, from a caller through the engine and back.

Engine, adapter, caller and another worker are a process each. The same call to the other worker's
t::echo, which does nothing, shows what the way there and back takes; the rest is the adapter's own.
The ratio is that of the whole call's median to its 0.3 ms. The processor time that adapter and
worker take for a call does not depend on what else the machine does.
"""
import common

RATE, SECONDS = 1000, 5
TARGET_US = 300

t = common.room(None)
bus = common.Bus(t)
worker = bus.echo()
info, echo = [], []


def cpu_us(process):
    with open(f"/proc/{process.pid}/schedstat", encoding="ascii") as f:
        return int(f.read().split()[0]) / 1000


cpu = {bus.serve: -cpu_us(bus.serve), worker: -cpu_us(worker)}
for _ in range(max(3, common.ROUNDS // 2)):
    r = bus.bench("rate", RATE, SECONDS, common.P + "adapter::info", "t::echo")
    info.append(r[common.P + "adapter::info"])
    echo.append(r["t::echo"])
cpu = {p: (us + cpu_us(p)) / len(info) / (RATE * SECONDS) for p, us in cpu.items()}
bus.end()


def of(rows, name):
    return common.median([row[name] for row in rows])


common.emit("calls", of(info, "p50_us") / TARGET_US, 1.0, calls_a_second=RATE,
            info_p50_us=of(info, "p50_us"), info_p99_us=of(info, "p99_us"),
            echo_p50_us=of(echo, "p50_us"), echo_p99_us=of(echo, "p99_us"),
            info_cpu_us=cpu[bus.serve], echo_cpu_us=cpu[worker],
            adapters_own_p50_us=of(info, "p50_us") - of(echo, "p50_us"), rounds=len(info))
