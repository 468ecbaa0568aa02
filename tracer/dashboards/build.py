"""Build Grafana's JSON from the tables of panels, with grafana-foundation-sdk.

The library is needed to build the dashboards, not to use them: the JSON is committed. ``python -m
hicache_dbg.tracer.dashboards.build dashboards/grafana`` regenerates it.
"""
# ruff: noqa: FBT003 - the library's builders take their boolean flags by position

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any, TypeAlias

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as values
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from hicache_dbg.tracer.dashboards.boards import BOARDS
from hicache_dbg.tracer.dashboards.spec import VARIABLES, Board, Kind, Look, Panel, Query, Row

__all__ = ["as_json", "main"]

COLUMNS = 24
TAG = "hicache-dbg"
#: The metrics in an expression: ours, and Prometheus's own.
NAME = re.compile(r"\bhicache_dbg_\w+|\bup\b")
ALPHABETICAL = model.VariableSort.ALPHABETICAL_ASC
DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")

_Builder: TypeAlias = (
    stat.Panel | timeseries.Panel | table.Panel | heatmap.Panel | statetimeline.Panel | text.Panel
)


def as_json(board: Board) -> str:
    """Return the dashboard as Grafana imports it, with keys in a stable order."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .link(_link())
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
    )
    source = dashboard.DatasourceVariable("datasource").type("prometheus").label("data source")
    built.with_variable(source)
    for variable in VARIABLES:
        built.with_variable(
            dashboard.QueryVariable(variable.name)
            .query(f"label_values({variable.selector}, {variable.label})")
            .datasource(DATASOURCE)
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.NUMERICAL_ASC if variable.numbers else ALPHABETICAL)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(model.VariableOption(text="All", value="$__all", selected=True))
        )
    for number, (item, grid) in enumerate(_layout(board.rows), start=1):
        if isinstance(item, Row):
            built.with_row(dashboard.Row(item.title).id(number).grid_pos(grid))
        else:
            built.with_panel(_panel(item, number, grid))
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def _link() -> dashboard.DashboardLink:
    """Return a menu of the other boards that keeps the time range and the variables."""
    link = dashboard.DashboardLink(TAG).type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(True).keep_time(True).include_vars(True)


def _layout(rows: tuple[Row, ...]) -> Iterator[tuple[Row | Panel, model.GridPos]]:
    """Yield rows and panels with their grid positions, left to right, line by line."""
    y = 0
    for row in rows:
        yield row, model.GridPos(h=1, w=COLUMNS, x=0, y=y)
        y, x, height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                y, x, height = y + height, 0, 0
            yield panel, model.GridPos(h=panel.height, w=panel.width, x=x, y=y)
            x, height = x + panel.width, max(height, panel.height)
        y += height


def _panel(panel: Panel, number: int, grid: model.GridPos) -> _Builder:
    built = _KINDS[panel.kind](panel)
    built.id(number).title(panel.title).description(_description(panel)).grid_pos(grid)
    if panel.kind is Kind.TEXT:
        return built
    built.datasource(DATASOURCE).no_value(panel.no_value)
    look = panel.look
    built.unit(look.unit).mappings(_mappings(look))
    if look.decimals is not None:
        built.decimals(look.decimals)
    if look.least is not None:
        built.min(look.least)
    if look.most is not None:
        built.max(look.most)
    if look.steps:
        built.thresholds(_thresholds(look))
    for letter, query in _lettered(panel):
        built.with_target(_target(panel, query, letter))
        if query.look is not None and panel.kind is Kind.TABLE:
            # Merged into one table, the columns no longer belong to a query.
            built.override_by_name(query.legend, _overrides(query.look))
        elif query.look is not None:
            built.override_by_query(letter, _overrides(query.look))
    for name, color in look.colors:
        built.override_by_name(name, [_color(color)])
    return built


def _description(panel: Panel) -> str:
    """Return the panel's description and the metrics that its queries read, of a histogram its name."""
    names = [name for query in panel.queries for name in NAME.findall(query.expr)]
    unique = dict.fromkeys(re.sub("_(bucket|sum|count)$", "", name) for name in names)
    plural = "s" if len(unique) > 1 else ""
    text = f"Metric{plural}: {', '.join(unique)}." if unique else ""
    return f"{panel.description} {text}".strip()


def _target(panel: Panel, query: Query, letter: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(DATASOURCE)
    if panel.kind is Kind.TABLE:
        return target.instant().format(PromQueryFormat.TABLE)
    target.legend_format(query.legend)
    if panel.kind is Kind.STAT:
        return target.instant()
    target.range().exemplar(query.exemplar)
    return target.format(PromQueryFormat.HEATMAP) if panel.kind is Kind.HEATMAP else target


def _stat(_: Panel) -> stat.Panel:
    return (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .text_mode(values.BigValueTextMode.VALUE_AND_NAME)
        .color_mode(values.BigValueColorMode.BACKGROUND)
        .graph_mode(values.BigValueGraphMode.NONE)
    )


def _lines(panel: Panel) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .display_mode(values.LegendDisplayMode.TABLE)
        .placement(values.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    tooltip = (
        common.VizTooltipOptions()
        .mode(values.TooltipDisplayMode.MULTI)
        .sort(values.SortOrder.DESCENDING)
    )
    built = timeseries.Panel().legend(legend).tooltip(tooltip).fill_opacity(10).line_width(1)
    if panel.look.stacked:
        built.stacking(common.StackingConfig().mode(values.StackingMode.NORMAL)).fill_opacity(60)
    if panel.look.bars:
        built.draw_style(values.GraphDrawStyle.BARS)
    return built


def _states(_: Panel) -> statetimeline.Panel:
    return (
        statetimeline.Panel()
        .merge_values(True)
        .show_value(values.VisibilityMode.AUTO)
        .row_height(0.9)
        .legend(common.VizLegendOptions().show_legend(True))
    )


def _heatmap(panel: Panel) -> heatmap.Panel:
    colors = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    return (
        heatmap.Panel()
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(panel.look.unit))
        .color(colors)
        .cell_gap(1)
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .exemplars_color("rgba(31,96,196,0.9)")
        .hide_legend()
    )


def _table(panel: Panel) -> table.Panel:
    built = table.Panel().show_header(True)
    if len(panel.queries) > 1:
        built.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    names = {_value_of(panel, letter): query.legend for letter, query in _lettered(panel)}
    wanted = [*panel.columns, *names]
    organise = {
        "indexByName": {name: place for place, name in enumerate(wanted)},
        "renameByName": names,
        "includeByName": dict.fromkeys(wanted, True),
    }
    built.with_transformation(model.DataTransformerConfig(id_val="organize", options=organise))
    if panel.sort:
        built.sort_by([common.TableSortByFieldState().display_name(panel.sort).desc(True)])
    return built


def _text(panel: Panel) -> text.Panel:
    return text.Panel().mode(TextMode.MARKDOWN).content(panel.content)


_KINDS: dict[Kind, Callable[[Panel], _Builder]] = {
    Kind.STAT: _stat,
    Kind.LINES: _lines,
    Kind.TABLE: _table,
    Kind.HEATMAP: _heatmap,
    Kind.STATES: _states,
    Kind.TEXT: _text,
}


def _lettered(panel: Panel) -> Iterator[tuple[str, Query]]:
    """Pair each query with the letter by which the panel refers to it."""
    return zip(ascii_uppercase, panel.queries, strict=False)


def _value_of(panel: Panel, letter: str) -> str:
    """Return the name that Grafana gives a query's value column."""
    return "Value" if len(panel.queries) == 1 else f"Value #{letter}"


def _thresholds(look: Look) -> dashboard.ThresholdsConfig:
    steps = [model.Threshold(value=step.value, color=step.color) for step in look.steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _mappings(look: Look) -> list[Any]:
    """Return one table that maps values to words; empty if there are none."""
    if not look.readings:
        return []
    options = {
        reading.value: model.ValueMappingResult(
            text=reading.text, color=reading.color or None, index=place
        )
        for place, reading in enumerate(look.readings)
    }
    return [model.ValueMap(options=options)]


def _overrides(look: Look) -> list[model.DynamicConfigValue]:
    """Return the field settings in which one query differs from its panel."""
    wanted: dict[str, object] = {"unit": look.unit, "mappings": _mappings(look)}
    if look.decimals is not None:
        wanted["decimals"] = look.decimals
    if look.steps:
        wanted["thresholds"] = _thresholds(look).build()
    return [model.DynamicConfigValue(id_val=name, value=value) for name, value in wanted.items()]


def _color(color: str) -> model.DynamicConfigValue:
    return model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})


def main(folder: Path) -> None:
    """Write every board's JSON into ``folder``."""
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(as_json(board))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
