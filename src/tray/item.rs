// SPDX-License-Identifier: MIT OR Apache-2.0
//! The item in the tray (`org.kde.StatusNotifierItem`, `com.canonical.dbusmenu`).

use std::path::Path;
use std::time::Duration;

use futures_lite::StreamExt;
use ksni::menu::{CheckmarkItem, StandardItem};
use ksni::{Category, MenuItem, OfflineReason, Status, ToolTip, TrayMethods};
use tokio::sync::watch;
use zbus::Connection;
use zbus::fdo::DBusProxy;
use zbus::names::BusName;

use super::view::{Click, Entry, Icon, Picture, without_keys, without_markup};
use super::{Event, Inbox};

const WATCHER: &str = "org.kde.StatusNotifierWatcher";
/// Between two tries to be shown.
const AGAIN: Duration = Duration::from_secs(10);

/// Shows each picture that comes, from when a host of trays is there.
pub(super) async fn keep(
    session: Connection,
    mut pictures: watch::Receiver<Picture>,
    inbox: Inbox,
) {
    let icons = icons();
    loop {
        if let Err(error) = host(&session).await {
            eprintln!("sluice-tray: cannot wait for a tray: {error}; trying again");
        }
        let picture = pictures.borrow_and_update().clone();
        let item = Item { picture, icons: icons.clone(), inbox: inbox.clone() };
        match item.assume_sni_available(true).spawn().await {
            Ok(handle) => {
                while pictures.changed().await.is_ok() {
                    let next = pictures.borrow_and_update().clone();
                    if handle.update(|item| item.picture = next).await.is_none() {
                        break;
                    }
                }
            }
            Err(error) => eprintln!("sluice-tray: not shown: {error}; trying again"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Waits for a host. ksni could do so, but misses one that comes between its asking
/// and its listening, as when both are started with the session.
async fn host(session: &Connection) -> zbus::Result<()> {
    let bus = DBusProxy::new(session).await?;
    let mut owners = bus.receive_name_owner_changed_with_args(&[(0, WATCHER)]).await?;
    if bus.name_has_owner(BusName::try_from(WATCHER)?).await? {
        return Ok(());
    }
    while let Some(change) = owners.next().await {
        if change.args()?.new_owner().is_some() {
            break;
        }
    }
    Ok(())
}

/// The icons beside this program, where it is installed outside of the places that
/// hosts look at.
fn icons() -> String {
    let program = std::env::current_exe().ok();
    let prefix = program.as_deref().and_then(Path::parent).and_then(Path::parent);
    let folder = prefix.map(|prefix| prefix.join("share/icons"));
    let found =
        folder.filter(|folder| folder.join("hicolor/scalable/status/sluice-on.svg").exists());
    found.map(|folder| folder.display().to_string()).unwrap_or_default()
}

struct Item {
    picture: Picture,
    icons: String,
    inbox: Inbox,
}

impl Item {
    fn clicked(&self, click: Click) {
        let _ = self.inbox.send(Event::Clicked(click));
    }
}

impl ksni::Tray for Item {
    const MENU_ON_ACTIVATE: bool = true;

    fn id(&self) -> String {
        "sluice-tray".to_owned()
    }

    fn category(&self) -> Category {
        Category::Hardware
    }

    fn status(&self) -> Status {
        if self.picture.icon == Icon::Fault { Status::NeedsAttention } else { Status::Active }
    }

    fn title(&self) -> String {
        self.picture.title.clone()
    }

    fn icon_name(&self) -> String {
        self.picture.icon.name().to_owned()
    }

    fn attention_icon_name(&self) -> String {
        Icon::Fault.name().to_owned()
    }

    fn icon_theme_path(&self) -> String {
        self.icons.clone()
    }

    fn tool_tip(&self) -> ToolTip {
        ToolTip {
            title: without_markup(&self.picture.title),
            description: without_markup(&self.picture.lines.join("\n")),
            ..ToolTip::default()
        }
    }

    fn menu(&self) -> Vec<MenuItem<Self>> {
        self.picture.menu.iter().cloned().map(entry).collect()
    }

    fn watcher_online(&self) {
        let _ = self.inbox.send(Event::Host { here: true });
    }

    fn watcher_offline(&self, _: OfflineReason) -> bool {
        let _ = self.inbox.send(Event::Host { here: false });
        true
    }
}

fn entry(entry: Entry) -> MenuItem<Item> {
    match entry {
        Entry::Line(text) => {
            StandardItem { label: without_keys(&text), enabled: false, ..StandardItem::default() }
                .into()
        }
        Entry::Separator => MenuItem::Separator,
        Entry::Switch { label, on } => CheckmarkItem {
            label: label.to_owned(),
            checked: on,
            activate: Box::new(move |item: &mut Item| {
                item.clicked(if on { Click::Disable } else { Click::Enable });
            }),
            ..CheckmarkItem::default()
        }
        .into(),
        Entry::Button { label, click, enabled } => StandardItem {
            label: without_keys(&label),
            enabled,
            activate: Box::new(move |item: &mut Item| item.clicked(click)),
            ..StandardItem::default()
        }
        .into(),
    }
}
