"""The bytes of a sum's values: chunks come back as they were cut, each as long as told."""

import pytest
import torch

from retexo.comm import message_format


@pytest.mark.parametrize("count", [0, 1, 3])
def test_bytes_whatever_the_strides(count: int) -> None:
    """A tensor of one value, or none, may have a stride of 0."""
    one, every_second = torch.arange(1).expand(count), torch.arange(2 * count)[::2]
    for values in (one, every_second):
        assert message_format.as_bytes(values).tobytes() == values.numpy().tobytes()
