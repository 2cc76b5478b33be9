"""Reports of machines for tests, as their workers store them."""

from sqlmodel import update

from worker.store import database, machines
from worker.store.tables import Machine

GIB = 2**30
VERSIONS = {"lathe-workbench": "0.2.0", "torch": "2.13.0", "transformers": "5.17.0", "peft": "0.18.0"}


def machine(name, **values):
    """Stores a report of a machine with one CPU device."""
    cpu = {"name": f"{name}/cpu", "label": "Xeon", "memory_bytes": 64 * GIB, "memory_used_bytes": 16 * GIB}
    usual = {
        "name": name,
        "host": name,
        "worker": f"{name}:100:5.0",
        "versions": VERSIONS,
        "cores": 16,
        "load": 3.2,
        "memory_bytes": 64 * GIB,
        "memory_used_bytes": 16 * GIB,
        "disk_bytes": 1000 * GIB,
        "disk_free_bytes": 400 * GIB,
        "devices": [cpu | {"utilization": 0.25}],
    }
    with database.write() as session:
        machines.report(session=session, machine=Machine(**usual | values))


def gpu(host, index, **values):
    """A GPU in a report."""
    usual = {
        "name": f"{host}/cuda:{index}",
        "label": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 80 * GIB,
        "memory_used_bytes": GIB,
        "temperature_celsius": 40 + index,
        "utilization": 0.0,
        "power_watts": 70.0,
        "power_limit_watts": 700.0,
    }
    return usual | values


def seen_ago(name, seconds):
    """Sets the machine's last report back."""
    with database.write() as session:
        last = database.clock() - seconds
        session.exec(update(Machine).where(Machine.name == name).values(last_seen=last))
