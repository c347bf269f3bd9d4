"""What every request passes on its way to vLLM: the key, our own endpoint, the count, the answer to a mistake.

One class, as vLLM warns of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.vllm_plugin.server.acceleration_endpoint import AccelerationEndpoint
from appliance.vllm_plugin.server.authentication import KeyOnEveryPath
from appliance.vllm_plugin.server.client_mistakes import AnswersMistakes
from appliance.vllm_plugin.server.in_flight import InFlight

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Gate:
    """Given to vLLM with --middleware. A request without the key is not counted as work."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = KeyOnEveryPath(AccelerationEndpoint(InFlight(AnswersMistakes(app))))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        await self.app(scope, receive, send)
