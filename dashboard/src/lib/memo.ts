// A component that is rendered again only if one of its properties changed.
import { Component, h, type ComponentType } from "preact";

export function memo<P extends object>(inner: ComponentType<P>): ComponentType<P> {
  return class extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      const [before, after] = [this.props as Record<string, unknown>, next as Record<string, unknown>];
      const names = new Set([...Object.keys(before), ...Object.keys(after)]);
      return [...names].some((name) => before[name] !== after[name]);
    }

    override render() {
      return h(inner, this.props as P);
    }
  };
}
