"""Write every dashboard to deploy/grafana/dashboards."""

from pathlib import Path

from deploy.grafana.generate.dashboards import DASHBOARDS
from deploy.grafana.generate.grafana_json import dashboard_text

FOLDER = Path(__file__).parent.parent / "dashboards"


def main() -> None:
    for dashboard in DASHBOARDS:
        file = FOLDER / f"{dashboard.slug}.json"
        file.write_text(dashboard_text(dashboard), encoding="utf-8")
        print(f"{file.relative_to(FOLDER.parent)}: {sum(len(row.panels) for row in dashboard.rows)} panels")


if __name__ == "__main__":
    main()
