// A heat map is read by pointer or by arrow keys; what is under the cursor is said beside it.
for (const grid of document.querySelectorAll("svg.grid")) {
  const say = document.getElementById(grid.dataset.say);
  const cursor = grid.querySelector(".cursor");
  const [columns, rows] = [Number(grid.dataset.columns), Number(grid.dataset.rows)];
  let [column, row] = [0, 0];
  const under = new Map();
  for (const cell of grid.querySelectorAll("rect:not(.cursor)")) {
    const [left, top, wide, tall] = ["x", "y", "width", "height"].map((name) => Number(cell.getAttribute(name)));
    for (let y = top; y < top + tall; y++)
      for (let x = left; x < left + wide; x++) under.set(y * columns + x, cell);
  }
  const show = () => {
    cursor.setAttribute("x", column);
    cursor.setAttribute("y", row);
    cursor.setAttribute("visibility", "visible");
    say.textContent = under.get(row * columns + column).querySelector("title").textContent;
  };
  grid.addEventListener("pointermove", (event) => {
    const box = grid.getBoundingClientRect();
    column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
    row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
    show();
  });
  grid.addEventListener("focus", show);
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    column = Math.min(columns - 1, Math.max(0, column + step[0]));
    row = Math.min(rows - 1, Math.max(0, row + step[1]));
    show();
    event.preventDefault();
  });
}
