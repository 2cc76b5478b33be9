"""Updates each weight as soon as its gradient is complete, and frees the gradient: all gradients are never in memory at once.

The optimizer itself stays one object with its groups and state, so schedules, checkpoints and their resumption see no difference.
Every weight's update depends on its own gradient only, so the result is that of a step after the backward pass. A weight is no
longer needed when its gradient is complete: every operation that used it has computed the gradients of all of its inputs.
"""

import torch


class StepInBackward:
    """Takes the steps of `optimizer` within backward passes.

    `discards`: a probe is running, whose gradients count as zeros. `squares` is the sum of the squared gradients of a pass, of
    shape (), from which `take_norm` computes the norm of the whole gradient.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self.discards = optimizer, False
        self._squares: torch.Tensor | None = None
        self._step_of = type(optimizer).step  # a scheduler counts calls of the instance's
        self._handles = [
            weight.register_post_accumulate_grad_hook(self._step)
            for group in optimizer.param_groups
            for weight in group["params"]
        ]

    def _step(self, weight: torch.Tensor) -> None:
        gradient = weight.grad
        assert gradient is not None
        if self.discards:
            gradient.zero_()
        square = torch.linalg.vector_norm(gradient, dtype=torch.float32).square()
        self._squares = square if self._squares is None else self._squares + square
        self._step_of(self._optimizer)  # all other weights have no gradient, which every optimizer skips
        weight.grad = None

    def take_norm(self) -> torch.Tensor | None:
        """Returns the norm of the last pass's gradient, of shape (), and begins anew; None without a gradient."""
        squares, self._squares = self._squares, None
        return None if squares is None else squares.sqrt()

    def remove(self) -> None:
        """Leaves the steps to the caller again."""
        for handle in self._handles:
            handle.remove()
