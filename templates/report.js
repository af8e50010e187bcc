"use strict";
// Everything on the page stands without this script; it adds sorting, filtering and opening by link.
(() => {
  const table = document.getElementById("gemms");
  const body = table.tBodies[0];
  const rows = [...body.rows];

  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
  };
  const known = (value) => value !== "–" && value !== "";
  const sortBy = (column, head) => {
    const numeric = rows.some((row) => row.cells[column].dataset.v !== undefined);
    const was = head.getAttribute("aria-sort");
    const down = was ? was === "ascending" : numeric; // numbers start with the largest
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keyed = rows.map((row, at) => [key(row, column), at, row]);
    keyed.sort(([a, i], [b, j]) => {
      const gap = (numeric ? typeof b === "number" : known(b)) - (numeric ? typeof a === "number" : known(a));
      if (gap) return gap; // unknown values last, whichever way
      const order = numeric && typeof a === "number" ? a - b : String(a).localeCompare(String(b));
      return (down ? -order : order) || i - j;
    });
    body.append(...keyed.map(([, , row]) => row));
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(column, head));
    head.append(button);
  });

  const input = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const texts = rows.map((row) =>
    [row.textContent, row.querySelector(".shape").dataset.q || "", row.querySelector(".kernel").title].join(" ").toLowerCase()
  );
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, at) => {
      row.hidden = !words.every((word) => texts[at].includes(word));
      count += !row.hidden;
    });
    shown.value = words.length ? `${count} of ${rows.length} rows` : `${rows.length} rows`;
  };
  if (rows.length) {
    document.querySelector(".tools").hidden = false;
    input.addEventListener("input", filter);
    filter();
  }

  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.hidden) { input.value = ""; filter(); }
    const fold = target.closest("details");
    if (fold) fold.open = true;
    target.scrollIntoView({ block: target.tagName === "TR" ? "center" : "nearest" });
  };
  addEventListener("hashchange", reveal);
  reveal();

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const fold of closed) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });
})();
