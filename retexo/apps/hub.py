"""`app=hub`: joins connections of nodes behind firewalls (retexo.launch.hub). It has no data."""

import logging
from pathlib import Path
from typing import NoReturn

from partitioning.errors import InputError
from retexo.launch.channels import listen
from retexo.launch.hub import HubServer
from retexo.launch.start_workers import terminate_as_exit
from retexo.launch.tls import import_certificates
from retexo.settings.run_settings import Settings

logger = logging.getLogger(__name__)


def run(settings: Settings, run_dir: Path) -> NoReturn:
    """Serve until a signal ends the process.

    Raises:
        InputError: it has no distributed.hub or no credentials, or cannot listen.
    """
    if settings.distributed.hub is None or settings.distributed.credentials is None:
        raise InputError(
            "app=hub: needs distributed.hub=ADDRESS:PORT, where it listens, and"
            " distributed.credentials=FOLDER; it is the last member, after all nodes"
        )
    tls = import_certificates().read_credentials(
        Path(settings.distributed.credentials), settings.num_nodes, settings.num_nodes
    )
    address, port = settings.distributed.hub_address
    listener = listen(address, port, f"distributed.hub={address}:{port}", "choose a free port")
    with listener, terminate_as_exit():
        logger.info("hub of %d nodes at %s", settings.num_nodes, settings.distributed.hub)
        server = HubServer(listener, tls)
        while True:
            server.step(1.0)
