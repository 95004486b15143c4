// The type that a dashboard's JSON has to satisfy: Grafana's own, with what each kind of panel adds to it.
import type {
  Dashboard, GraphFieldConfig, OptionsWithLegend, OptionsWithTooltip, Panel, ReduceDataOptions, RowPanel,
} from "@grafana/schema";

// JSON holds an enum's values, not its members.
type Plain<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;

type Query = {
  refId: string; datasource: { type: "prometheus"; uid: string }; expr: string; legendFormat: string;
  format: "time_series" | "heatmap"; range: boolean; instant: boolean; editorMode: "code";
};
type Drawn<Kind extends string, Options, Custom> = Omit<Plain<Panel>, "type" | "options" | "targets" | "fieldConfig"> & {
  type: Kind; title: string; description: string; options: Options; targets: Query[];
  fieldConfig: { defaults: Omit<Plain<NonNullable<Panel["fieldConfig"]>["defaults"]>, "custom"> & Custom; overrides: [] };
};
type Lines = Drawn<"timeseries", Plain<OptionsWithLegend & OptionsWithTooltip>, { custom: Plain<GraphFieldConfig> }>;
type Number = Drawn<"stat", {
  reduceOptions: Plain<ReduceDataOptions>; colorMode: "value" | "background" | "none"; graphMode: "area" | "none";
  textMode: "auto" | "value" | "name" | "value_and_name" | "none";
}, {}>;
type Heat = Drawn<"heatmap", {
  calculate: boolean; cellGap: number; yAxis: { unit: string };
  color: { mode: "scheme"; scheme: string; steps: number };
}, {}>;

export type StagewireDashboard = Omit<Plain<Dashboard>, "panels"> & {
  uid: string; title: string; panels: (Plain<RowPanel> | Lines | Number | Heat)[];
};
