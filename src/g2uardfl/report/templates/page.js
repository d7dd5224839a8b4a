"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const SVG = "http://www.w3.org/2000/svg";
  const element = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // Theme: that of the system until the reader chooses one.
  const root = document.documentElement, button = document.getElementById("theme");
  const remembered = (value) => {
    try {
      if (value) localStorage.setItem("g2uardfl-theme", value);
      return localStorage.getItem("g2uardfl-theme");
    } catch { return null; }  // pages from files may have no storage
  };
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const setTheme = (theme) => {
    if (theme) root.dataset.theme = theme;
    button.textContent = isDark() ? "Light" : "Dark";
  };
  setTheme(remembered());
  button.addEventListener("click", () => setTheme(remembered(isDark() ? "light" : "dark") || (isDark() ? "light" : "dark")));

  // Tooltip.
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (event, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4)) + "px";
    tip.style.top = (event.clientY + 18 + height < innerHeight ? event.clientY + 18 : Math.max(4, event.clientY - height - 12)) + "px";
  };
  addEventListener("scroll", hide, { passive: true, capture: true });
  const place = (svg, event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height];
  };

  // Shows what `text` says about the place under the pointer or a finger.
  const explains = (svg, text) => {
    for (const kind of ["pointermove", "pointerdown"]) {
      svg.addEventListener(kind, (event) => {
        const found = text(event);
        if (found) show(event, found);
        else hide();
      });
    }
    svg.addEventListener("pointerleave", hide);
  };

  // Curves: the values of all series at the round under the pointer.
  for (const svg of all('svg[data-role="readout"]')) {
    const line = element("path", { class: "cursor" });
    const { x, series, left, right, top, bottom } = JSON.parse(svg.dataset.readout);
    if (!x.length) continue;  // nothing was evaluated yet
    const first = x[0], width = Math.max(x[x.length - 1] - first, 1);
    svg.append(line);
    explains(svg, (event) => {
      const value = first + (place(svg, event)[0] - left) / (right - left) * width;
      let index = 0;
      x.forEach((round, i) => { if (Math.abs(round - value) < Math.abs(x[index] - value)) index = i; });
      const at = left + (x[index] - first) / width * (right - left);
      line.setAttribute("d", `M${at} ${top}V${bottom}`);
      const values = series.filter((one) => one.y[index]).sort((a, b) => b.y[index][0] - a.y[index][0]);
      const shown = ({ name, y }) => `${y[index][0].toFixed(2)} %${y[index][1] ? ` ± ${y[index][1].toFixed(2)}` : ""}  ${name}`;
      return [`round ${x[index]}`, ...values.map(shown)].join("\n");
    });
    svg.addEventListener("pointerleave", () => line.removeAttribute("d"));
  }

  // A series chosen in a legend: all others fade.
  for (const key of all("[data-series]")) {
    const figure = key.closest("figure");
    const isolate = () => {
      const chosen = key.getAttribute("aria-pressed") === "true" ? null : key.dataset.series;
      for (const one of all("[data-series]", figure)) one.setAttribute("aria-pressed", String(one === key && chosen !== null));
      for (const mark of all(".panel .line, .panel .band, .panel .symbol", figure)) {
        const style = [...mark.classList].filter((name) => /^[sd]\d$/.test(name)).join(" ");
        mark.classList.toggle("faint", chosen !== null && style !== chosen);
      }
    };
    key.addEventListener("click", isolate);
    key.addEventListener("keydown", (event) => { if (event.key === "Enter") isolate(); });
  }

  for (const run of all("details.run")) {
    const source = run.querySelector("script.data");
    let parsed;
    const data = () => parsed ??= prepare(JSON.parse(source.textContent));
    const prepare = (given) => {
      const rounds = given.rounds.map(([number, verdicts]) => [number, new Map(verdicts.map((one) => [one[0], one]))]);
      return { ...given, rounds, byNumber: new Map(rounds), places: new Map(given.clients.map((client, i) => [client, i])) };
    };
    const explain = (number, verdict) => {
      const [client, decision, attacked, reason, score] = verdict, known = data();
      const truth = known.known ? (attacked ? ", attacked" : ", did not attack") : "";
      return `Round ${number}, client ${known.clients[client]}${truth}\n${known.decisions[decision].replace("_", " ")}` +
        `${score === undefined ? "" : `, score ${score.toFixed(2)}`}\n${known.reasons[reason]}`;
    };

    // A chosen client is highlighted in the table and in all figures.
    const timeline = run.querySelector('svg[data-role="timeline"]'), scores = run.querySelector('svg[data-role="scores"]');
    const top = (grid, place) => grid.top + grid.row * place + (place >= grid.attackers ? grid.gap : 0);
    let chosen = null;
    const choose = (client) => {
      chosen = client === chosen ? null : client;
      for (const row of all(".clients tbody tr", run)) row.classList.toggle("chosen", row.dataset.client === chosen);
      for (const node of all(".node[data-client]", run)) node.classList.toggle("picked", node.dataset.client === chosen);
      all(".row-picked, .curve-picked", run).forEach((one) => one.remove());
      if (chosen === null) return;
      const place = data().places.get(chosen);
      if (timeline) {
        const grid = JSON.parse(timeline.dataset.readout), width = grid.column * data().rounds.length;
        timeline.append(element("path", { class: "row-picked", d: `M${grid.left} ${top(grid, place)}h${width}v${grid.row}h${-width}z` }));
      }
      if (scores) {
        const { x, y } = JSON.parse(scores.dataset.readout);
        const scale = ([low, high, first, last], value) => low + (value - first) / Math.max(last - first, 1e-9) * (high - low);
        const points = data().rounds.filter(([, verdicts]) => (verdicts.get(place) ?? []).length > 4)
          .map(([number, verdicts]) => `${scale(x, number).toFixed(1)} ${scale(y, verdicts.get(place)[4]).toFixed(1)}`);
        if (points.length) scores.append(element("path", { class: "line picked curve-picked", d: "M" + points.join("L") }));
      }
    };

    if (timeline) {
      const grid = JSON.parse(timeline.dataset.readout);
      const under = (event) => {
        const [x, y] = place(timeline, event);
        let row = Math.floor((y - grid.top) / grid.row);
        if (row >= grid.attackers) row = Math.max(grid.attackers, Math.floor((y - grid.top - grid.gap) / grid.row));
        return [data().rounds[Math.floor((x - grid.left) / grid.column)], row];
      };
      explains(timeline, (event) => {
        const [round, row] = under(event), verdict = round?.[1].get(row), client = data().clients[row];
        return verdict ? explain(round[0], verdict) : client !== undefined && `client ${client}`;
      });
      timeline.addEventListener("click", (event) => {
        const client = data().clients[under(event)[1]];
        if (client !== undefined) choose(client);
      });
    }

    for (const figure of all("figure", run)) {
      const slider = figure.querySelector('input[type="range"]'), graph = figure.querySelector('svg[data-role="graph"]');
      const frames = all(".frame", figure);
      slider?.addEventListener("input", () => {
        frames.forEach((frame, i) => frame.toggleAttribute("hidden", i !== Number(slider.value)));
        figure.querySelector("output").textContent = frames[slider.value].dataset.label;
      });
      if (graph) explains(graph, (event) => {
        const client = event.target.dataset.client, number = Number(event.target.parentNode.dataset.label);
        return client !== undefined && explain(number, data().byNumber.get(number).get(data().places.get(client)));
      });
      graph?.addEventListener("click", (event) => { if (event.target.dataset.client !== undefined) choose(event.target.dataset.client); });
    }

    // The table of clients: filter, order, choose.
    const table = run.querySelector("table.clients");
    if (!table) continue;
    const body = table.tBodies[0], [text, kind] = all(".controls input, .controls select", run), count = run.querySelector(".count");
    const filter = () => {
      const wanted = text.value.trim().toLowerCase();
      let left = 0;
      for (const row of body.rows) {
        row.hidden = !(row.textContent.toLowerCase().includes(wanted) && (!kind.value || row.dataset.tags.split(" ").includes(kind.value)));
        left += !row.hidden;
      }
      count.textContent = `${left} of ${body.rows.length}`;
    };
    text.addEventListener("input", filter);
    kind.addEventListener("change", filter);
    filter();
    body.addEventListener("click", (event) => { const row = event.target.closest("tr"); if (row) choose(row.dataset.client); });
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    for (const head of all("th[data-sort]", table)) {
      head.tabIndex = 0;
      const order = () => {
        const falls = head.classList.contains("number") ? head.getAttribute("aria-sort") !== "descending" : head.getAttribute("aria-sort") === "ascending";
        const cell = (row) => row.cells[head.cellIndex].textContent;
        const value = (row) => head.classList.contains("number") ? Number(cell(row) === "" ? NaN : cell(row)) : 0;
        const rows = [...body.rows].sort((a, b) => (head.classList.contains("number") ? value(a) - value(b) : compare(cell(a), cell(b))) * (falls ? -1 : 1));
        body.append(...rows);
        all("th", table).forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      };
      head.addEventListener("click", order);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") order(); });
    }
  }

  // A figure as a file of its own, in the colours for paper.
  const style = JSON.parse(document.getElementById("figure-style").textContent);
  const standalone = (figure) => {
    const panels = all(".panel > svg", figure), size = (svg) => svg.viewBox.baseVal;
    const columns = Math.min(2, panels.length), wide = Math.max(...panels.map((svg) => size(svg).width)) * columns;
    const made = element("svg", { xmlns: SVG, "font-family": "Helvetica, Arial, sans-serif", "font-size": 11 });
    made.append(element("title", {}, figure.querySelector("h3").textContent), element("style", {}, style));
    const ground = element("path", { fill: "#ffffff" });
    made.append(ground);
    let x = 0, y = 12;
    for (const item of all(".legend li", figure)) {
      const needed = 34 + 6.2 * item.textContent.length;
      if (x && x + needed > wide - 10) { x = 0; y += 18; }
      const group = element("g", { transform: `translate(${x + 6} ${y - 8})` });
      group.append(...[...item.querySelector("svg").cloneNode(true).childNodes], element("text", { x: 20, y: 9 }, item.textContent));
      made.append(group);
      x += needed;
    }
    let top = y + 14;
    for (let row = 0; row < panels.length; row += columns) {
      const beside = panels.slice(row, row + columns);
      beside.forEach((svg, i) => {
        const group = element("g", { transform: `translate(${i * wide / columns} ${top})` });
        group.append(...svg.cloneNode(true).childNodes);
        all("[hidden], .cursor", group).forEach((one) => one.remove());
        made.append(group);
      });
      top += Math.max(...beside.map((svg) => size(svg).height));
    }
    ground.setAttribute("d", `M0 0h${wide}v${top}h${-wide}z`);
    for (const [name, value] of [["width", wide], ["height", top], ["viewBox", `0 0 ${wide} ${top}`]]) made.setAttribute(name, value);
    return new XMLSerializer().serializeToString(made);
  };
  for (const figure of all("figure")) {
    figure.querySelector(".save").addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([standalone(figure)], { type: "image/svg+xml" }));
      link.download = figure.dataset.name + ".svg";
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }
})();
