"""Secure aggregation: sums with pairwise masks that cancel only in the whole sum.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
section 4, without the recovery of dropouts: a lost worker ends the run. Of each pair of workers,
the lower rank adds and the other subtracts the same ChaCha20 stream. Its key comes from two X25519
keys, which are drawn at every start, also of a resumed run. Each message has its own nonce, so that
no mask is used twice.

Shares are integers modulo 2^32 or 2^64, in which masks cancel exactly. Public keys are exchanged
over the streams between the two workers, which with TLS have checked certificates. The run id and
the names of all members are part of the keys.
"""

import torch

from retexo.comm.collectives import Communicator
from retexo.comm.masks import PairwiseMasks
from retexo.comm.received import reading_from
from retexo.comm.traffic_meter import SETUP
from retexo.launch.security import import_certificates


def agree_on_masks(comm: Communicator, context: str) -> PairwiseMasks:
    """Agree on a key with every other worker; sends 32 bytes to each.

    Args:
        context: a text that all workers of this run have, and no other run.
    """
    import_certificates()
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    private = X25519PrivateKey.generate()
    own = torch.frombuffer(bytearray(private.public_key().public_bytes_raw()), dtype=torch.uint8)
    with comm.without_replay_log():  # a resumed run draws new keys
        public = [bytes(each.tolist()) for each in comm.all_gather(own, SETUP)]
    keys = {}
    for peer in range(comm.world_size):
        if peer != comm.rank:
            first, second = sorted((comm.rank, peer))
            info = f"retexo sums {first} {second} ".encode() + public[first] + public[second]
            with reading_from(peer, "public key"):
                secret = private.exchange(X25519PublicKey.from_public_bytes(public[peer]))
            keys[peer] = HKDF(hashes.SHA256(), 32, context.encode(), info).derive(secret)
    return PairwiseMasks(comm.rank, keys)
