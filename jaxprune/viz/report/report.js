"use strict";
// Tables sort by their headers; missing values stay last either way.
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
