
"use strict";
(() => {
  const root = document.currentScript.parentNode;
  const slider = root.querySelector('input[type="range"]'), heat = root.querySelector('input[type="checkbox"]');
  const output = root.querySelector("output"), patches = Number(slider.dataset.patches);
  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const cells = [...root.querySelectorAll("canvas")].map(canvas => ({
    context: canvas.getContext("2d"),
    places: new Uint16Array(bytes(canvas.dataset.places).buffer),
    colours: bytes(canvas.dataset.colours),
  }));
  // Two greys in turn, as of a chessboard: they differ from dark, from bright and from grey photographs.
  const tone = (patch, columns) => Array(3).fill((patch % columns + Math.floor(patch / columns)) % 2 ? 108 : 148);
  // One pixel of the canvas is a patch; the photograph lies behind it.
  function draw() {
    const kept = Math.max(1, Math.floor(patches * slider.value / 100 + 1e-9));
    output.textContent = `${slider.value} %: ${kept} ${slider.dataset.label}`;
    for (const {context, places, colours} of cells) {
      const image = context.createImageData(context.canvas.width, context.canvas.height);
      places.forEach((place, patch) => {
        const colour = heat.checked ? [...colours.subarray(3 * patch, 3 * patch + 3), 165] : [...tone(patch, context.canvas.width), place < kept ? 0 : 215];
        image.data.set(colour, 4 * patch);
      });
      context.putImageData(image, 0, 0);
    }
  }
  slider.addEventListener("input", draw);
  heat.addEventListener("input", draw);
  draw();
})();
