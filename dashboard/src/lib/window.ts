/** Whether the window has room for two columns: as in the style sheets. */
export const isWide = (): boolean => matchMedia("(min-width: 821px)").matches;
