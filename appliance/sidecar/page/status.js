
"use strict";
// Asks for /v1/status and puts the texts that the sidecar made into their places; reloads when the tables are old.
const places = document.querySelectorAll("[data-live]");
const phase = document.getElementById("phase");
const curve = document.getElementById("curve");
const banner = document.getElementById("banner");
const revision = document.body.dataset.revision;
let answered = Date.now();

async function refresh() {
  try {
    const answer = await fetch("/v1/status", { signal: AbortSignal.timeout(5000) });
    const status = await answer.json();
    if (status.revision !== revision && document.visibilityState === "visible") {
      location.reload();
      return;
    }
    for (const place of places) {
      const text = status.shown[place.dataset.live] ?? "–";
      if (place.textContent !== text) place.textContent = text;
    }
    phase.className = "phase " + status.phase;
    curve.setAttribute("points", status.curve);
    answered = Date.now();
    banner.hidden = true;
  } catch {
    const seconds = Math.round((Date.now() - answered) / 1000);
    banner.textContent = "The sidecar does not answer: what stands here is " + seconds + " s old.";
    banner.hidden = false;
  }
  setTimeout(refresh, 2000);
}

setTimeout(refresh, 2000);
