"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead button").forEach((button) => {
    button.addEventListener("click", () => {
      const cell = button.closest("th"), column = cell.cellIndex;
      const down = cell.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (one, two) => {
        const a = value(one), b = value(two), numbers = a !== "" && b !== "" && !isNaN(a) && !isNaN(b);
        return (numbers ? a - b : a.localeCompare(b)) * (down ? -1 : 1);
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
for (const form of document.querySelectorAll("form.filter")) {
  const items = [...document.querySelectorAll(form.dataset.items)];
  const count = form.querySelector("output");
  const apply = () => {
    const words = form.elements.words.value.toLowerCase();
    const chosen = [...form.querySelectorAll("select")].filter((select) => select.value);
    let shown = 0;
    for (const item of items) {
      const fits = chosen.every((select) => JSON.parse(item.dataset[select.name]).includes(select.value));
      item.hidden = !(fits && item.textContent.toLowerCase().includes(words));
      shown += item.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${items.length}`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
}
