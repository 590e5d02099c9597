"""Whether the hub can be reached, asked once with a short patience.

The clients of the hub try again and again for half a minute.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants


def hub_is_unreachable() -> bool:
    """False where it is not known: offline by the user's wish, or behind a proxy."""
    if constants.HF_HUB_OFFLINE or getproxies():
        return False
    place = urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((place.hostname or "", place.port or 443), timeout=5):
            return False
    except OSError:
        return True


@contextmanager
def datasets_offline_if_unreachable() -> Iterator[None]:
    """Without the hub, `datasets` takes what is in its cache at once, or says that there is nothing."""
    import datasets

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if hub_is_unreachable():
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
