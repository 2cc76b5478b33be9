"""Numbers as people read them."""


def size(count: float) -> str:
    """Bytes in binary units: "512 B", "12.3 MiB", "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
