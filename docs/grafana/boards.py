#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the boards of Grafana: stateport.json, of RequestCache.prometheus and StateTiers.prometheus,
stateport-vllm.json, of the connector for vLLM, and stateport-sglang.json, of the linker or the storage for SGLang.

    boards.py           rewrites the files
    boards.py --check   changes nothing, and fails if a file differs

A board has a row for each question. docs/operating.md says for each panel what it means if it is red. Standard library
only."""
import argparse
import dataclasses
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 24, 8
# Answers of transfers that brought an image other than the one that was asked for.
WRONG = 'status=~"damaged|foreign_layout|wrong_position"'


@dataclasses.dataclass
class Panel:
    """queries: expression and legend. A red panel has a value at or above `red`. heatmap: the expression is one of
    buckets. stacked: the values are parts of a whole."""

    title: str
    queries: list
    unit: str = "short"
    red: float = None
    stacked: bool = False
    heatmap: bool = False
    about: str = ""

    def json(self, number, x, y, width):
        kind = "heatmap" if self.heatmap else "timeseries"
        targets = [{"datasource": DATASOURCE, "expr": query, "legendFormat": legend, "refId": chr(ord("A") + i),
                    "format": "heatmap" if self.heatmap else "time_series"}
                   for i, (query, legend) in enumerate(self.queries)]
        panel = {"id": number, "type": kind, "title": self.title, "description": self.about, "datasource": DATASOURCE,
                 "gridPos": {"x": x, "y": y, "w": width, "h": HEIGHT}, "targets": targets}
        if self.heatmap:
            panel["options"] = {"calculate": False, "yAxis": {"unit": self.unit}, "color": {"scheme": "Oranges"},
                                "tooltip": {"mode": "single"}}
            return panel
        custom = {"fillOpacity": 20, "showPoints": "never"}
        if self.stacked:
            custom |= {"stacking": {"mode": "normal"}, "fillOpacity": 60}
        defaults = {"unit": self.unit, "min": 0, "custom": custom}
        if self.red is not None:
            custom["thresholdsStyle"] = {"mode": "line+area"}
            defaults["thresholds"] = {"mode": "absolute", "steps": [
                {"color": "transparent", "value": None}, {"color": "red", "value": self.red}]}
        panel["fieldConfig"] = {"defaults": defaults, "overrides": []}
        panel["options"] = {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
                            "tooltip": {"mode": "multi", "sort": "desc"}}
        return panel


@dataclasses.dataclass
class Names:
    """Of one exporter. chosen: labels that the variables of the board choose."""

    prefix: str
    chosen: str

    def of(self, name, *labels):
        return f"{self.prefix}{name}{{{', '.join([*labels, self.chosen])}}}"

    def rate(self, name, *labels, by="", window="$__rate_interval"):
        by = f" by ({by})" if by else ""
        return f"sum{by} (rate({self.of(name, *labels)}[{window}]))"

    def sum(self, name, *labels, by):
        return f"sum by ({by}) ({self.of(name, *labels)})"

    def quantile(self, part, name, *labels, by=""):
        by = f"le, {by}" if by else "le"
        return f"histogram_quantile({part}, {self.rate(name + '_bucket', *labels, by=by)})"

    def ages(self):
        """Above 1 half of the states are evicted younger than half of the reused states are when they are used."""
        return " / ".join(f"histogram_quantile(0.5, {self.rate(name + '_bucket', by='le', window='1h')})"
                          for name in ("reuse_age_seconds", "eviction_age_seconds"))


def quantiles(names, metric, *labels, by="", legend=""):
    return [(names.quantile(part, metric, *labels, by=by), f"{legend}p{round(100 * part)}") for part in (0.5, 0.95)]


def common(names):
    """Panels of both boards: their metrics have one meaning."""
    lost = Panel("Lost tokens by reason", [(names.rate("lost_tokens_total", by="reason"), "{{reason}}")], stacked=True,
                 about="Tokens a second that were computed though their KV is or was cached.")
    depth = Panel("Hit depth", quantiles(names, "request_hit_tokens"), about="Hit tokens of a prompt.")
    memory = [Panel("Used bytes", [(names.sum("used_bytes", by="tier, content"), "{{tier}} {{content}}"),
                                   (names.sum("capacity_bytes", by="tier, content"),
                                    "{{tier}} {{content}}, capacity")], "bytes"),
              Panel("Contents", [(names.sum("states", by="tier"), "states, {{tier}}"),
                                 (names.sum("kv_tokens", by="tier"), "tokens of KV, {{tier}}")])]
    ages = [Panel(title, [(names.rate(f"{metric}_bucket", by="le"), "{{le}}")], "s", heatmap=True)
            for title, metric in (("Age at reuse", "reuse_age_seconds"), ("Age at eviction", "eviction_age_seconds"))]
    ages.append(Panel("Median age at reuse / at eviction", [(names.ages(), "reuse / eviction")], red=2,
                      about="Above 1 states are evicted before they would be used again. Bounds of buckets double: "
                            "between 1 and 2 it is not sure."))
    more = [Panel("Tokens lost to eviction", [(names.rate("lost_tokens_total", 'reason=~"evicted|evicted_kv"'),
                                               "lost to eviction")],
                  about="The most that more memory would have hit. How much of it, the replay of a trace says."),
            Panel("Evictions", [(names.rate("evicted_states_total", by="tier"), "states, {{tier}}"),
                                (names.rate("evicted_kv_tokens_total"), "tokens of KV")])]
    return lost, depth, memory, ages, more


def under_way(names):
    return Panel("Transfers under way", [(names.sum("transfer_bytes", by="tier, direction"),
                                          "{{tier}} {{direction}}")], "bytes")


def plain_board():
    names = Names("stateport_", 'instance=~"$instance"')
    lost, depth, memory, ages, more = common(names)
    sources = Panel("Prompt tokens by source", [(names.rate("source_tokens_total", by="source"), "{{source}}")],
                    stacked=True)
    waits = Panel("Waiting requests", [(names.sum("waiting_requests", by="for"), "for {{for}}")],
                  about="Requests that no pass can run yet.")
    loads = [Panel("Load seconds", quantiles(names, "transfer_seconds", 'direction="load"', by="tier",
                                             legend="{{tier}} "), "s"),
             Panel("Save and find seconds, p95", [
                 (names.quantile(0.95, "transfer_seconds", 'direction=~"store|find"', by="tier, direction"),
                  "{{tier}} {{direction}}")], "s"),
             Panel("Bytes of transfers", [(names.rate("transferred_bytes_total", by="tier, direction"),
                                           "{{tier}} {{direction}}")], "Bps"),
             waits, under_way(names)]
    faults = [Panel("Wrong images", [(names.rate("ended_transfers_total", WRONG, by="tier, status"),
                                      "{{tier}} {{status}}")], red=1e-9),
              Panel("Failed and refused", [
                  (names.rate("ended_transfers_total", 'status=~"failed|no_room"', by="tier, direction, status"),
                   "{{tier}} {{direction}} {{status}}"),
                  (names.rate("lost_images_total", by="tier"), "{{tier}} lost"),
                  (names.rate("refused_images_total", by="tier"), "{{tier}} refused")]),
              Panel("Faults of checkpoints", [(names.rate("state_faults_total", by="kind"), "{{kind}}"),
                                              (names.rate("withdrawn_states_total"), "withdrawn")], red=1e-9)]
    rows = {"Where prompt tokens come from": [sources], "Lost tokens": [lost], "Hit depth": [
        depth, Panel("Lost depth", quantiles(names, "request_lost_tokens"))], "Memory": memory, "Ages of states": ages,
            "Loads": loads, "Integrity": faults, "More memory": more}
    return board("stateport", "stateport", rows, {"instance": "label_values(stateport_info, instance)"})


def vllm_board():
    names = Names("vllm:stateport_", 'model_name=~"$model_name", engine=~"$engine"')
    engine = Names("vllm:", names.chosen)
    lost, depth, memory, ages, more = common(names)
    sources = Panel("Prompt tokens by source", [(engine.rate("prompt_tokens_by_source_total", by="source"),
                                                 "{{source}}"),
                                                (names.rate("hit_tokens_total", by="tier"), "stateport, {{tier}}")])
    first = Panel("Time to first token", quantiles(engine, "time_to_first_token_seconds"), "s")
    loads = [Panel("Load seconds", quantiles(names, "load_seconds", by="tier", legend="{{tier}} "), "s"),
             Panel("Wait and find seconds, p95", [(names.quantile(0.95, f"{name}_seconds"), name)
                                                  for name in ("wait", "find")], "s"),
             Panel("Copies of a step, p95", [(names.quantile(0.95, f"{name}_seconds"), name)
                                             for name in ("restore", "save")], "s"),
             Panel("Bytes of copies and loads", [(names.rate("saved_bytes_total"), "to the host"),
                                                 (names.rate("restored_bytes_total"), "from the host"),
                                                 (names.rate("loaded_bytes_total", by="tier"), "from {{tier}}")],
                   "Bps"),
             Panel("Waiting prompts", [(names.sum("waiting_prompts", by="for"), "for {{for}}")]),
             Panel("Late loads", [(names.rate("late_loads_total"), "late")], red=1e-9), under_way(names)]
    faults = [Panel("Wrong images", [(names.rate("failed_reads_total", WRONG, by="tier, status"),
                                      "{{tier}} {{status}}")], red=1e-9),
              Panel("Failed restores", [(names.rate("failed_restores_total"), "restores")], red=1e-9),
              Panel("Failed transfers", [(names.rate("failed_transfers_total"), "transfers"),
                                         (names.rate("failed_writes_total", by="tier, status"),
                                          "writes, {{tier}} {{status}}")])]
    rows = {"Where prompt tokens come from": [sources], "Lost tokens": [lost],
            "Time to first token and hit depth": [first, depth], "Memory": memory, "Ages of states": ages,
            "Loads": loads, "Integrity": faults, "More memory": more}
    return board("stateport in vLLM", "stateport-vllm", rows, {
        "model_name": "label_values(vllm:stateport_prompts_total, model_name)",
        "engine": 'label_values(vllm:stateport_prompts_total{model_name=~"$model_name"}, engine)'})


def sglang_board():
    names = Names("sglang:stateport_", 'model_name=~"$model_name", tp_rank=~"$tp_rank"')
    engine = Names("sglang:", 'model_name=~"$model_name"')
    sources = Panel("Cached prompt tokens by source", [
        (engine.rate("cached_tokens_total", 'cache_source!="total"', by="cache_source"), "{{cache_source}}"),
        (engine.rate("prompt_tokens_total"), "all prompts")])
    first = Panel("Time to first token", quantiles(engine, "time_to_first_token_seconds"), "s")
    memory = [Panel("Used bytes", [(names.sum("image_bytes", by="tier"), "{{tier}}"),
                                   (names.sum("capacity_bytes", by="tier"), "{{tier}}, capacity")], "bytes"),
              Panel("Images", [(names.sum("images", by="tier"), "{{tier}}")])]
    loads = [Panel("Load and offload seconds", quantiles(names, "job_seconds", by="kind", legend="{{kind}} "), "s"),
             Panel("Transfers", [(names.rate("transfers_total", by="kind, status"), "{{kind}} {{status}}")])]
    faults = [Panel("Wrong images", [(names.rate("transfers_total", 'kind="load"', WRONG, by="status"),
                                      "{{status}}")], red=1e-9),
              Panel("Failed transfers", [(names.rate("transfers_total", 'status=~"failed|no_room"', by="kind, status"),
                                          "{{kind}} {{status}}")])]
    more = [Panel("Evictions", [(names.rate("dropped_images_total", by="tier"), "images, {{tier}}")],
                  about="Images that lost their place in a tier to others.")]
    rows = {"Where prompt tokens come from": [sources], "Time to first token": [first], "Memory": memory,
            "Loads": loads, "Integrity": faults, "More memory": more}
    return board("stateport in SGLang", "stateport-sglang", rows, {
        "model_name": "label_values(sglang:stateport_capacity_bytes, model_name)",
        "tp_rank": 'label_values(sglang:stateport_capacity_bytes{model_name=~"$model_name"}, tp_rank)'})


def variable(name, query):
    return {"name": name, "type": "query", "datasource": DATASOURCE, "query": {"query": query, "refId": name},
            "definition": query, "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}}


def board(title, uid, rows, variables):
    panels, y = [], 0
    for row, inside in rows.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        y += 1
        columns = min(len(inside), 3)
        for i, panel in enumerate(inside):
            width = WIDTH // columns
            panels.append(panel.json(len(panels) + 1, i % columns * width, y + i // columns * HEIGHT, width))
        y += -(-len(inside) // columns) * HEIGHT
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "current": {}}
    return {"title": title, "uid": uid, "schemaVersion": 39, "version": 1, "editable": True, "refresh": "30s",
            "tags": ["stateport"], "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
            "templating": {"list": [source, *(variable(*one) for one in variables.items())]},
            "annotations": {"list": []}, "panels": panels}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file differs")
    check = parser.parse_args().check
    differs = False
    for made in (plain_board(), vllm_board(), sglang_board()):
        file, text = HERE / f"{made['uid']}.json", json.dumps(made, indent=1) + "\n"
        if not check:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            print(f"{file.name} differs from boards.py: run it", file=sys.stderr)
            differs = True
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
