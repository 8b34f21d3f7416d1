from __future__ import annotations

import pytest
import torch

from timm_gcp.robustness.streams import Parts, stream


class Numbers(torch.utils.data.Dataset):
    def __getitem__(self, place):
        return 100 * place[0] + place[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_goes_through_the_parts_in_order(workers):
    counts = [3, 1, 4]
    seen = [(part, size, last, batch.tolist()) for part, size, last, batch in stream(Numbers(), counts, 2, workers)]
    assert seen == [
        (0, 2, False, [0, 1]),
        (0, 1, True, [2]),
        (1, 1, True, [100]),
        (2, 2, False, [200, 201]),
        (2, 2, True, [202, 203]),
    ]
    assert len(Parts(counts, 2)) == 5
    assert list(stream(Numbers(), [], 2, 0)) == []


def test_stream_rejects():
    with pytest.raises(ValueError, match="--batch-size must be 1 or more; got 0"):
        Parts([1], 0)
    with pytest.raises(ValueError, match="--workers must be 0 or more; got -1"):
        list(stream(Numbers(), [1], 1, -1))
