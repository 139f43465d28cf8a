"""How a Triton server serves a model: what its extension `model_configuration` says of instances and batches.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_configuration.md
"""

from __future__ import annotations

import msgspec


class Instances(msgspec.Struct):
    """One group of copies of the model."""

    count: int = 1
    kind: str = ""


class Batching(msgspec.Struct):
    """How long a request may wait for others to make a batch with."""

    max_queue_delay_microseconds: int = 0


class ModelConfig(msgspec.Struct):
    """The part of a model's configuration that changes how requests are served."""

    max_batch_size: int = 0
    instance_group: list[Instances] = []
    dynamic_batching: Batching | None = None

    def components(self) -> dict[str, str]:
        """Return the components of the environment.

        Returns:
            Component → value; empty where the server does not say it. Triton names a group of instances for each model.
        """
        if not self.instance_group:
            return {}
        groups = (f"{g.count} {g.kind.removeprefix('KIND_')}".strip() for g in self.instance_group)
        batching = self.dynamic_batching
        return {
            "kserve_instances": " + ".join(groups),
            "kserve_max_batch_size": str(self.max_batch_size),
            "kserve_batching": "off"
            if batching is None
            else f"waits {batching.max_queue_delay_microseconds} µs",
        }
