// A chart over time: uPlot in the colours of the dashboard, with its latest values as text.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { scheme } from "../../lib/scheme";
import { useStore } from "../../lib/store";

export interface Series {
  label: string;
  values: (number | null)[];
}

interface Props {
  title: string;
  /** Seconds since 1970, ascending. */
  times: number[];
  series: Series[];
  format: (value: number) => string;
  /** Values of days: drawn as bars. */
  bars?: boolean;
}

const HEIGHT_PX = 150;
const COLOURS = 8;
const HALF_DAY_S = 43_200;
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const cursors = uPlot.sync("operations");

export function Chart({ title, times, series, format, bars = false }: Props) {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const colours = useStore(scheme);
  const shape = `${series.map(({ label }) => label).join("|")} ${colours}`;
  const data = [times, ...series.map(({ values }) => values)] as uPlot.AlignedData;
  const latest = series.map(({ label, values }) => `${label} ${shown(values.at(-1), format)}`).join(", ");

  useEffect(() => {
    const host = element.current;
    if (!host) return;
    const made = new uPlot(optionsOf(host, series.map(({ label }) => label), format, bars), data, host);
    plot.current = made;
    showLatest(made);
    let frame = 0;
    // with the next frame: another width wraps the legend, which changes the height of what is observed
    const resized = new ResizeObserver(() => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => host.clientWidth !== made.width && made.setSize({ width: host.clientWidth, height: HEIGHT_PX }));
    });
    resized.observe(host);
    return () => {
      resized.disconnect();
      cancelAnimationFrame(frame);
      made.destroy();
      plot.current = null;
    };
  }, [shape, bars]);
  useEffect(() => {
    plot.current?.setData(data);
    if (plot.current) showLatest(plot.current);
  });

  return (
    <figure class="card chart">
      <figcaption><h3>{title}</h3><span class="unseen">{latest}</span></figcaption>
      <div ref={element} aria-hidden="true" />
    </figure>
  );
}

/** Let the legend show the latest values while the pointer is elsewhere. */
function showLatest(plot: uPlot): void {
  if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
}

const shown = (value: number | null | undefined, format: (value: number) => string): string => (value === null || value === undefined ? "–" : format(value));

function optionsOf(host: HTMLElement, labels: string[], format: (value: number) => string, bars: boolean): uPlot.Options {
  const style = getComputedStyle(host);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--ink-3"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `12px ${colour("--font")}` };
  const columns = bars && uPlot.paths.bars ? { paths: uPlot.paths.bars({ size: [0.6, 40] }), points: { show: false } } : {};
  return {
    width: host.clientWidth,
    height: HEIGHT_PX,
    // the last time is written half beyond the axis: "04:10 AM" takes 52 px
    padding: [8, 28, 0, 0],
    cursor: bars ? {} : { sync: { key: cursors.key } },
    hooks: { setCursor: [showLatest] },
    scales: { ...(bars ? { x: { range: (_plot: uPlot, from: number, to: number): uPlot.Range.MinMax => [from - HALF_DAY_S, to + HALF_DAY_S] } } : {}), y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    legend: { live: true },
    axes: [
      { ...axis, size: 30, space: 60, values: (_plot, ticks) => ticks.map((tick) => (bars ? new Date(tick * 1000).toISOString().slice(5, 10) : CLOCK.format(tick * 1000))) },
      { ...axis, size: 58, values: (_plot, ticks) => ticks.map(format) },
    ],
    series: [
      { value: (_plot, value) => (value === null || value === undefined ? "–" : bars ? new Date(value * 1000).toISOString().slice(0, 10) : new Date(value * 1000).toLocaleTimeString()) },
      ...labels.map((label, index): uPlot.Series => {
        const stroke = colour(`--hue-${index % COLOURS}`);
        return {
          label, stroke, width: 1.5, spanGaps: false,
          ...(bars ? { fill: stroke } : {}), ...columns,
          value: (_plot, value) => shown(value as number | null, format),
        };
      }),
    ],
  };
}
