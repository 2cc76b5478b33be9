"""The devices of this machine that runs may have now."""

from sqlmodel import Session, select

from worker.machine.devices import lease_name, own_devices, usable_gpus
from worker.machine.gpus import used_by_others
from worker.settings import get_settings
from worker.store import machines, nodes
from worker.store.tables import DeviceLease


def offered(*, session: Session) -> list[str]:
    """This machine's devices that are not put aside after a failure."""
    avoided = machines.cordoned(session=session)
    return [device for device in own_devices() if device not in avoided]


def free(*, session: Session) -> list[str]:
    """This machine's devices that no run has leased, that are not put aside, and of which others do not use the memory.

    What LATHE_DEVICES names is free whatever others do.
    """
    taken = {*session.exec(select(DeviceLease.device)), *nodes.devices_in_use(session=session)}
    left = [device for device in offered(session=session) if device not in taken]
    if get_settings().devices:
        return left
    gpus = {lease_name(gpu): gpu for gpu in usable_gpus()}
    return [device for device in left if device not in gpus or not used_by_others(gpus[device])]
