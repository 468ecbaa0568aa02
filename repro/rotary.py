"""Rotary position embedding, and the norm that goes with it."""

from dataclasses import dataclass

import torch

__all__ = ["Rotation", "rms"]


def rms(values: torch.Tensor) -> torch.Tensor:
    """Scale the last axis to a root mean square of 1."""
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Rotary position embedding of R tokens: ``cos`` and ``sin`` are (R, half the width)."""

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, positions: torch.Tensor, width: int) -> "Rotation":
        """Compute the angles for ``positions`` (R,); they rotate the last ``width`` values."""
        half = width // 2
        steps = torch.arange(half, dtype=torch.float64, device=positions.device)
        angles = positions.unsqueeze(-1) * torch.pow(10000.0, -steps / half)
        return cls(angles.cos(), angles.sin())

    def turn(self, values: torch.Tensor) -> torch.Tensor:
        """Rotate the last values of each token; ``values`` is (R, d) or (R, heads, d)."""
        cos, sin = self.cos, self.sin
        if values.dim() > cos.dim():
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        half = cos.shape[-1]
        first, second = values[..., -2 * half : -half], values[..., -half:]
        plain = values[..., : values.shape[-1] - 2 * half]
        return torch.cat((plain, first * cos - second * sin, first * sin + second * cos), -1)
