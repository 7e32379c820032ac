//! The dashboard as Grafana reads it.

use serde_json::{Value, json};

use super::panels::{Panel, ROWS, Shape};

/// Grafana's columns.
const COLUMNS: u32 = 24;
/// The identity by which an import replaces an earlier one.
const UID: &str = "millrace";
/// The selection of the dashboard's variables.
const SELECTION: &str = "job=\"millrace\",cluster=~\"$cluster\",node=~\"$node\"";

/// Returns the expression of a query as Grafana sends it.
pub fn expression(query: &str) -> String {
    query.replace('@', SELECTION).replace("$every", "$__rate_interval")
}

/// Returns the dashboard.
pub fn dashboard() -> String {
    let (mut panels, mut id, mut y) = (Vec::new(), 0, 0);
    for row in ROWS {
        id += 1;
        let place = json!({"x": 0, "y": y, "w": COLUMNS, "h": 1});
        panels.push(json!({
            "id": id, "type": "row", "title": row.title, "collapsed": false, "gridPos": place, "panels": []
        }));
        y += 1;
        let (mut x, mut height) = (0, 0);
        for panel in row.panels {
            let (w, h) = panel.size();
            if x + w > COLUMNS {
                (x, y) = (0, y + height);
            }
            id += 1;
            panels.push(panel.json(id, &json!({"x": x, "y": y, "w": w, "h": h})));
            (x, height) = (x + w, h);
        }
        y += height;
    }
    let dashboard = json!({
        "uid": UID,
        "title": "Millrace",
        "description": "Services, nodes and control plane of Millrace. Made from the code by `cargo xtask docs`.",
        "tags": ["millrace", "kubernetes"],
        "schemaVersion": 39,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables()},
        "annotations": {"list": []},
        "panels": panels,
    });
    serde_json::to_string_pretty(&dashboard).unwrap() + "\n"
}

/// Returns the variables: the data source, then one of labels each.
fn variables() -> Vec<Value> {
    let of_label = |name: &str, metric: &str| {
        let query = format!("label_values({metric}, {name})");
        json!({
            "name": name, "type": "query", "datasource": source(), "definition": query,
            "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1,
            "includeAll": true, "multi": true, "allValue": ".*",
            "current": {"selected": true, "text": "All", "value": "$__all"},
        })
    };
    vec![
        json!({"name": "datasource", "type": "datasource", "query": "prometheus", "current": {}}),
        of_label("cluster", "millrace_build_info"),
        of_label("node", "millrace_build_info{cluster=~\"$cluster\"}"),
        of_label("namespace", "millrace_service_packets_total"),
        of_label("service", "millrace_service_packets_total{namespace=~\"$namespace\"}"),
    ]
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

impl Panel {
    /// Returns width and height.
    const fn size(&self) -> (u32, u32) {
        match self.shape {
            Shape::AtMost(_) | Shape::Number => (4, 4),
            Shape::Lines | Shape::Stacked | Shape::Table => (8, 8),
        }
    }

    fn json(&self, id: u32, place: &Value) -> Value {
        let is_number = self.size().0 == 4;
        let targets = self.queries.iter().enumerate().map(|(index, (query, legend))| {
            json!({
                "refId": format!("Q{index}"), "datasource": source(), "expr": expression(query),
                "legendFormat": legend, "instant": is_number || self.shape == Shape::Table,
                "range": !(is_number || self.shape == Shape::Table),
                "format": if self.shape == Shape::Table { "table" } else { "time_series" },
            })
        });
        json!({
            "id": id,
            "type": match self.shape {
                Shape::AtMost(_) | Shape::Number => "stat",
                Shape::Lines | Shape::Stacked => "timeseries",
                Shape::Table => "table",
            },
            "title": self.title,
            "description": self.about,
            "datasource": source(),
            "gridPos": place,
            "targets": targets.collect::<Vec<_>>(),
            "fieldConfig": {"defaults": self.defaults(), "overrides": []},
            "options": self.options(),
            "transformations": self.transformations(),
        })
    }

    fn defaults(&self) -> Value {
        let unit = self.unit;
        match self.shape {
            Shape::AtMost(most) => {
                let steps = json!([{"color": "green", "value": null}, {"color": "red", "value": most + 1}]);
                json!({"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}})
            }
            Shape::Number => {
                let steps = json!([{"color": "text", "value": null}]);
                json!({"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}})
            }
            Shape::Lines | Shape::Stacked => {
                let is_stacked = self.shape == Shape::Stacked;
                let custom = json!({
                    "drawStyle": "line", "lineWidth": 1, "showPoints": "never",
                    "fillOpacity": if is_stacked { 30 } else { 0 },
                    "stacking": {"mode": if is_stacked { "normal" } else { "none" }, "group": "A"},
                });
                json!({"unit": unit, "min": 0, "custom": custom})
            }
            Shape::Table => json!({"unit": unit}),
        }
    }

    fn options(&self) -> Value {
        match self.shape {
            Shape::AtMost(_) | Shape::Number => json!({
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
                "colorMode": "value", "graphMode": "none", "justifyMode": "center",
            }),
            Shape::Lines | Shape::Stacked => json!({
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }),
            Shape::Table => json!({"showHeader": true}),
        }
    }

    /// A table shows labels alone.
    fn transformations(&self) -> Value {
        match self.shape {
            Shape::Table => {
                json!([{"id": "organize", "options": {"excludeByName": {"Time": true, "Value": true}}}])
            }
            _ => json!([]),
        }
    }
}
