"use strict";
// Tables sort by their headers and filter by words, points of plots show their labels; missing values stay last either way.
function sortBy(header) {
  const table = header.closest("table"), body = table.tBodies[0];
  const headers = [...header.parentNode.children], column = headers.indexOf(header);
  const numeric = header.classList.contains("n"), now = header.getAttribute("aria-sort");
  const down = now === "none" ? numeric : now === "ascending";
  const key = row => {
    const cell = row.cells[column];
    return numeric ? parseFloat(cell.dataset.v) : cell.textContent;
  };
  const missing = value => Number.isNaN(value) || value === "–";
  const order = (a, b) => numeric ? a - b : a.localeCompare(b, undefined, {numeric: true});
  const rows = [...body.rows].map(row => [key(row), row]);
  rows.sort(([a], [b]) => missing(a) - missing(b) || (missing(a) ? 0 : down ? order(b, a) : order(a, b)));
  body.append(...rows.map(([, row]) => row));
  for (const other of headers) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
}

// A row stays if it contains every word of the filter.
function filterRows(input) {
  const rows = [...document.getElementById(input.getAttribute("aria-controls")).querySelectorAll("tbody tr")];
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    const text = [...row.cells].map(cell => cell.textContent.toLowerCase()).join(" ");
    row.hidden = !words.every(word => text.includes(word));
  }
  const shown = rows.filter(row => !row.hidden).length;
  input.closest(".filter").querySelector("output").textContent = words.length ? `${shown} of ${rows.length} rows` : "";
}

// The label of a point beside it, inside the window.
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");  // the label itself is read out
document.body.append(tip);

function showTip(point) {
  tip.textContent = point.getAttribute("aria-label");
  tip.hidden = false;
  const at = point.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const left = (at.left + at.right - own.width) / 2, above = at.top - own.height - 8;
  tip.style.left = `${Math.max(4, Math.min(left, document.documentElement.clientWidth - own.width - 4))}px`;
  tip.style.top = `${above < 4 ? at.bottom + 8 : above}px`;
}

const hideTip = () => { tip.hidden = true; };

// The tabulator key reaches one point of a plot, the arrow keys the others.
function moveFocus(point, key) {
  const points = [...point.closest("svg").querySelectorAll(".point")], last = points.length - 1;
  const now = points.indexOf(point);
  const next = {ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: last}[key];
  if (next === undefined) return false;
  const other = points[Math.max(0, Math.min(next, last))];
  point.setAttribute("tabindex", "-1");
  other.setAttribute("tabindex", "0");
  other.focus();
  return true;
}

async function copyCommand(button) {
  const code = button.parentNode.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {  // no clipboard for pages of this origin: select, and use the old way
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

document.addEventListener("click", event => {
  const header = event.target.closest(".table thead th"), copy = event.target.closest(".copy");
  if (header) sortBy(header);
  if (copy) copyCommand(copy);
});
document.addEventListener("input", event => {
  if (event.target.closest(".filter")) filterRows(event.target);
});
for (const name of ["pointerover", "focusin"]) {
  document.addEventListener(name, event => {
    const point = event.target.closest(".point");
    if (point) showTip(point);
  });
}
for (const name of ["pointerout", "focusout"]) {
  document.addEventListener(name, event => { if (event.target.closest(".point")) hideTip(); });
}
document.addEventListener("scroll", hideTip, true);
document.addEventListener("keydown", event => {
  const point = event.target.closest(".point");
  if (event.key === "Escape") hideTip();
  else if (point && moveFocus(point, event.key)) event.preventDefault();
});
for (const filter of document.querySelectorAll(".filter")) filter.hidden = false;
