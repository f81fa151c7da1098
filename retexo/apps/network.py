"""The setting `network` with a bandwidth: chooses precisions for the partitions of a run."""

import logging
from dataclasses import asdict, replace
from typing import Any

from partitioning.errors import InputError
from retexo.apps.find_partitions import open_directory
from retexo.plan.precision import Candidate, choose, gradient_candidates, row_candidates
from retexo.settings.flatten import with_values
from retexo.settings.run_settings import Settings

logger = logging.getLogger(__name__)


def with_chosen_precision(settings: Settings) -> tuple[Settings, dict[str, Any]]:
    """Return the settings with the precisions that network=BANDWIDTH leads to.

    Also returns, for summary.json, the bytes and seconds of each candidate; nothing for wan and
    lan, which are resolved with the other settings.

    Raises:
        InputError: The sizes of the partitions are not known.
    """
    network, free = settings.train.network.cost, settings.train.network.decides
    bandwidth = settings.train.network.bandwidth
    if network != "wan" and not free:
        logger.info(
            "network=%s changes nothing: other settings, such as trainer or +experiment, decide"
            " the precision of rows and gradients",
            network,
        )
    if bandwidth is None or not free:
        return settings, {}
    directory = open_directory(settings)
    if directory.meta is None:
        raise InputError(
            f"network={network}: {directory.path} has no meta.json with the sizes of all"
            " partitions, from which bytes are predicted; set network=wan or lan"
        )
    candidates: dict[str, list[Candidate]] = {}
    if "exchange.precision" in free:
        candidates["rows"] = row_candidates(settings.train, directory.meta, bandwidth)
    if free - {"exchange.precision"}:
        candidates["gradients"] = gradient_candidates(
            settings.train, directory.meta, bandwidth, free
        )
    chosen: dict[str, str] = {}
    for kind, each in candidates.items():
        best = choose(each)
        chosen |= best.values
        logger.info(
            "network=%s: %s in %s; predicted for the busiest worker, at most: %s",
            network,
            kind,
            best.encoding,
            "; ".join(map(str, each)),
        )
    return _with_values(settings, chosen), {
        "network": {kind: [asdict(one) for one in each] for kind, each in candidates.items()}
    }


def _with_values(settings: Settings, values: dict[str, str]) -> Settings:
    """Return settings with other values of BY_NETWORK."""
    exchange, gradient = settings.train.exchange, settings.train.gradient
    stored: dict[str, Any] = dict(values)
    if "exchange.precision" in values:
        stored["exchange.precision"] = [values["exchange.precision"]]
        exchange = replace(
            exchange, precision=(values["exchange.precision"],) * len(exchange.precision)
        )
    gradient = replace(
        gradient,
        precision=values.get("gradient.precision", gradient.precision),
        compression=values.get("gradient.compression", gradient.compression),
    )
    train = replace(settings.train, exchange=exchange, gradient=gradient)
    return replace(settings, train=train, resolved=with_values(settings.resolved, stored))
