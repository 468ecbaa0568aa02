"""Group single slots into slot ranges of pages, so that a token-granular copy can be digested."""

import numpy as np

from hicache_dbg.tracer.ledger import Pages

__all__ = ["slot_spans"]


def slot_spans(
    host_ids: Pages, device_ids: Pages, host_slots: int, device_slots: int
) -> tuple[Pages, Pages, Pages, Pages]:
    """Group single slots by the pair of pages they lie in.

    A pair whose slots do not form one ascending run at both ends gets the empty span ``0, 0, 0,
    0``: its bytes are not a range that can be digested.

    Returns:
        Host pages, device pages, spans (int64 ``[pairs, 4]``: first and last-plus-one slot at the
            host end, then at the device end), and the position of each pair's first slot in the
            input.
    """
    pairs = np.stack((host_ids // host_slots, device_ids // device_slots), axis=1)
    unique, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    spans = np.zeros((len(unique), 4), np.int64)
    for pair in range(len(unique)):
        chosen = inverse == pair
        host, device = host_ids[chosen] % host_slots, device_ids[chosen] % device_slots
        if (np.diff(host) == 1).all() and (np.diff(device) == 1).all():
            spans[pair] = host[0], host[-1] + 1, device[0], device[-1] + 1
    return unique[:, 0], unique[:, 1], spans, first
