"use strict";
(() => {
  const data = JSON.parse(document.getElementById("curve-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const kinds = {
    "loss-step": { x: "step", y: "loss", low: "low", high: "high", title: "optimizer step" },
    "loss-time": { x: "seconds", y: "loss", low: "low", high: "high", title: "seconds since the start of the command" },
    "metric-epoch": { x: "epoch", y: "metric", low: "metric_low", high: "metric_high", title: "epoch" },
    "rate-step": { x: "step", y: "rate", title: "optimizer step" },
    "cpu-time": { x: "machine_seconds", y: "cpu", title: "seconds since the start of the command" },
    "gpu-time": { x: "gpu_seconds", y: "gpu", title: "seconds since the start of the command" },
  };
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function traces(curves, kind) {
    return curves.flatMap((curve, index) => [...band(curve, kind, index), line(curve, kind, index)]);
  }

  function band(curve, kind, index) {
    const low = curve[kind.low] || [], high = curve[kind.high] || [];
    if (!low.length) return [];
    const x = curve[kind.x];
    return [{
      type: "scatter", mode: "none", fill: "toself", hoverinfo: "skip", curve: index, opacity: 0.2,
      fillcolor: variable("--c" + curve.colour),
      x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()],
    }];
  }

  function line(curve, kind, index) {
    return {
      type: "scatter",
      mode: curve[kind.x].length < 2 ? "markers" : kind.x === "epoch" ? "lines+markers" : "lines",
      name: curve.label.replace(/&/g, "&amp;").replace(/</g, "&lt;"),
      curve: index,
      x: curve[kind.x],
      y: curve[kind.y],
      opacity: curve.width > 2 ? 0.55 : 1,
      line: { color: variable("--c" + curve.colour), dash: curve.width > 2 ? "solid" : curve.dash, width: curve.width },
      marker: { color: variable("--c" + curve.colour), size: 8 },
    };
  }

  function layout(kind) {
    const axis = {
      color: variable("--muted"), gridcolor: variable("--line"), zeroline: false,
      linecolor: variable("--line"), automargin: true, fixedrange: narrow.matches,
    };
    return {
      margin: { l: 8, r: 12, t: 8, b: 8 },
      height: narrow.matches ? 240 : 300,
      showlegend: false,
      hovermode: "closest",
      hoverlabel: { namelength: -1, bgcolor: variable("--surface"), bordercolor: variable("--line"), font: { color: variable("--ink") } },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 13, color: variable("--ink") },
      xaxis: { ...axis, title: { text: kind.title, standoff: 8, font: { size: 13 } }, rangemode: "tozero", nticks: narrow.matches ? 5 : 8 },
      yaxis: { ...axis, nticks: 6, rangemode: ["rate", "cpu", "gpu"].includes(kind.y) ? "tozero" : "normal", exponentformat: "power" },
    };
  }

  function draw(section) {
    const curves = data[section.dataset.curves];
    const plots = [...section.querySelectorAll("[data-plot]")];
    const logarithmic = section.querySelector("[data-log]");
    const boxes = [...section.querySelectorAll("[data-curve]")];
    const paint = () => plots.forEach((element) => {
      const kind = kinds[element.dataset.plot];
      const form = layout(kind);
      if (kind.y === "loss" && logarithmic.checked) { form.yaxis.type = "log"; form.yaxis.nticks = 0; }
      const shown = traces(curves, kind).map(({ curve, ...trace }) => ({ ...trace, visible: boxes[curve].checked }));
      Plotly.react(element, shown, form, { responsive: true, displayModeBar: false, showTips: false });
    });
    section.querySelectorAll("input").forEach((input) => input.addEventListener("change", paint));
    dark.addEventListener("change", paint);
    narrow.addEventListener("change", paint);
    paint();
  }

  document.querySelectorAll("[data-curves]").forEach(draw);
})();
